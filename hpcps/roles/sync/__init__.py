"""The synchronous protocol: rounds that everyone agrees on.

- `worker`: the worker
- `partitions`: how a role sends the partitions of a round, and how a combiner collects them
- `validator`: the validator
- `server`: the server
- `announcements`: what a server says with its models: epochs, checkpoints, statistics, the end
- `shard`: the slice of the model that a server keeps
- `readers`: who gets the models of a server
- `membership`: who takes part in the rounds of a combiner: its workers, without those that are lost
- `shared_batches`: how many samples each worker takes while others are lost
- `quorum`: rounds that do not wait for every worker
- `abandoning`: local steps that a late worker leaves when its round has closed
- `last_answer`: the answer of a late worker, for checkpoints
- `audit`: commitments of workers to their states, and audits of them
- `adversary`: the adversary
"""
