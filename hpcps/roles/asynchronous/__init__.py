"""The asynchronous protocol: nobody waits for others; server 0 gives every request its place in one log.

- `worker`: the worker
- `validator`: the validator
- `filter`: checks an update, passes it to the rule, and scales it by alpha
- `server`: the server; server 0 keeps the log
- `membership`: what a server knows of each process: whether it is lost, and where its replacement begins
- `log`: how other roles submit entries, and the order in which all servers execute them
- `buffer`: the updates that a server collects for a synchronous rule
- `shard`: the slice of the model that a server keeps, and earlier weights
- `adversary`: the adversary
"""
