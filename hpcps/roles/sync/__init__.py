"""The synchronous protocol: rounds that everyone agrees on.

- `abandoning`: local steps that a late worker leaves when its round has closed
- `adversary`: the adversary
- `announcements`: what a server says with its models: epochs, checkpoints, statistics, the end
- `last_answer`: the answer of a late worker, for checkpoints
- `partitions`: how a role sends the partitions of a round, and how a combiner collects them
- `quorum`: rounds that do not wait for every worker
- `readers`: who gets the models of a server
- `server`: the server
- `shard`: the slice of the model that a server keeps
- `validator`: the validator
- `worker`: the worker; start here
"""
