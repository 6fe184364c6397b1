"""What all roles that exchange messages have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from hpcps.protocol.messages import Peer
from hpcps.roles.events import Effect, Event
from hpcps.spec.schema import Run


class MessagingRole(ABC):
    """A role of a run; a subclass says how it reacts to events, among them the messages of its peers."""

    device = "cpu"  # of a role that does not train; its vectors may be on a device (`device_buffers` of the record)

    def __init__(self, peer: Peer, run: Run) -> None:
        self.peer = peer
        self._run, self.run_id = run, run.id

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether this process keeps the checkpoints of the run; by default another one does."""
        return False

    @abstractmethod
    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
