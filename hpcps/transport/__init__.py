"""Transports: messages between roles, independent of their meaning; each is a component (`transport.kind`).

Its class declares what it offers and has its keys; a transport between processes joins their group.

- `backoff`: how a process waits without using its core
- `base`: the interface of a transport
- `device/`: vectors in the memory of devices, such as GPUs
- `inproc`: messages between the roles of one process
- `mpi/`: messages and collective operations over MPI
- `process_group`: collective operations of all processes of a launch, and how a process joins it
- `pslite/`: messages between nodes of ps-lite
- `rendezvous`: the file from which nodes read the address of their scheduler
- `shared_memory/`: exchange between processes of one host
"""

from hpcps.transport.inproc import InOneProcess
from hpcps.transport.mpi.component import OverMpi
from hpcps.transport.process_group import LaunchedProcess, ProcessGroup, ProcessTransport
from hpcps.transport.pslite.component import OverPslite

__all__ = ["InOneProcess", "LaunchedProcess", "OverMpi", "OverPslite", "ProcessGroup", "ProcessTransport"]
