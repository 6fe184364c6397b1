"""Exchange between processes of one host: receivers read payloads in place, and a pipe wakes them.

- `neighbours`: the processes that share memory with this one
- `arena`: memory that other processes of the host can read
- `mailbox`: a pipe for messages, on which a process sleeps
- `process_group`: the process group of processes of one host, without MPI
"""

from hpcps.transport.shared_memory.arena import Arena, SegmentAddress
from hpcps.transport.shared_memory.neighbours import Neighbours

__all__ = ["Arena", "Neighbours", "SegmentAddress"]
