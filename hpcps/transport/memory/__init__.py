"""Exchange between processes of one host: payloads are read where they lie, and a bell says that a message came."""

from hpcps.transport.memory.arena import Arena, Place
from hpcps.transport.memory.neighbours import Neighbours

__all__ = ["Arena", "Neighbours", "Place"]
