"""The asynchronous protocol: nobody waits for others; server 0 gives every request its place in one log.

- `adversary`: the adversary
- `filter`: checks an update, passes it to the rule, and scales it by alpha
- `log`: how other roles submit entries, and the order in which all servers execute them
- `server`: the server; server 0 keeps the log
- `shard`: the slice of the model that a server keeps, and earlier weights
- `validator`: the validator
- `worker`: the worker; start here
"""
