"""A key-value store on ps-lite nodes, with the protocol of MXNet's `dist_sync` and `dist_async` stores."""

from hpcps.kvstore.client import Client
from hpcps.kvstore.server import Server

__all__ = ["Client", "Server"]
