"""A key-value store on ps-lite nodes, as MXNet's `dist_sync` and `dist_async` stores speak it."""

from hpcps.kvstore.client import Client
from hpcps.kvstore.server import Server

__all__ = ["Client", "Server"]
