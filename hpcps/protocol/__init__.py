"""What roles say to each other, and in which order.

- `envelope`: who sends a message, in which run; its bytes
- `messages/`: the messages between roles, a class for each; start here
- `partitioning`: the partitions of the model, each of which is a message
- `received`: what a role receives
- `roster`: the roles of a run, and which of them exchange messages
- `schedule`: the order of local steps, rounds, epochs and evaluations
"""
