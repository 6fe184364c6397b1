"""Transports: messages between roles, independent of their meaning; each is a component (`transport.kind`).

Its class declares what it offers and has its keys; a transport between processes joins their group.

- `base`: the interface of a transport
- `inproc`: messages between the roles of one process
- `process_group`: collective operations of all processes of a launch, and how a process joins it
- `mpi/`: messages and collective operations over MPI
- `shared_memory/`: exchange between processes of one host
- `device/`: vectors in the memory of devices, such as GPUs
- `pslite/`: messages between nodes of ps-lite
- `rendezvous`: the file from which nodes read the address of their scheduler
- `backoff`: how a process waits without using its core
"""

from hpcps.transport.inproc import InOneProcess
from hpcps.transport.mpi.component import OverMpi
from hpcps.transport.process_group import LaunchedProcess, ProcessGroup, ProcessTransport
from hpcps.transport.pslite.component import OverPslite

__all__ = ["InOneProcess", "LaunchedProcess", "OverMpi", "OverPslite", "ProcessGroup", "ProcessTransport"]
