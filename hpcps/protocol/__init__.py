"""What roles say to each other, and in which order.

- `messages`: the messages between roles; start here
- `partitioning`: the partitions of the model, each of which is a message
- `roster`: the roles of a run, and which of them exchange messages
- `schedule`: the order of local steps, rounds, epochs and evaluations
"""
