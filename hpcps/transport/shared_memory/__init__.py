"""Exchange between processes of one host: receivers read payloads in place, and a pipe wakes them."""

from hpcps.transport.shared_memory.arena import Arena, SegmentAddress
from hpcps.transport.shared_memory.neighbours import Neighbours

__all__ = ["Arena", "Neighbours", "SegmentAddress"]
