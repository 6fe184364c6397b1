"""A key-value store on ps-lite nodes, with the protocol of MXNet's `dist_sync` and `dist_async` stores.

- `client`: a worker of the store
- `server`: a server, and the values that it stores
- `protocol`: its messages, and the placement of keys on servers
- `__main__`: the program of a scheduler or server
"""

from hpcps.kvstore.client import Client
from hpcps.kvstore.server import Server

__all__ = ["Client", "Server"]
