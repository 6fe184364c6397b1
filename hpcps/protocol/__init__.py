"""What roles say to each other, and in which order.

- `messages/`: the messages between roles, a class for each
- `envelope`: who sends a message, in which run; its bytes
- `received`: what a role receives
- `roster`: the roles of a run, and which of them exchange messages
- `partitioning`: the partitions of the model, each of which is a message
- `schedule`: the order of local steps, rounds, epochs and evaluations
"""
