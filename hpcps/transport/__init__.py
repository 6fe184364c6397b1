"""Transports: messages between roles, independent of their meaning; each is a component (`transport.kind`).

Its class declares what it offers and has its keys; a transport between processes joins their group.
"""

from hpcps.transport.inproc import InOneProcess
from hpcps.transport.mpi.component import OverMpi
from hpcps.transport.process_group import LaunchedProcess, ProcessGroup, ProcessTransport
from hpcps.transport.pslite.component import OverPslite

__all__ = ["InOneProcess", "LaunchedProcess", "OverMpi", "OverPslite", "ProcessGroup", "ProcessTransport"]
