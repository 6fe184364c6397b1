"""What all roles that exchange messages have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from hpcps.protocol.messages import Message, Peer
from hpcps.roles.checks import vetted
from hpcps.roles.events import Effect, Event, Send
from hpcps.spec.schema import Run


class MessagingRole(ABC):
    """A role that checks the sender and the run of each message, and writes its own into the messages that it sends."""

    device = "cpu"  # of a role that does not train; its vectors may be on a device (`device_buffers` of the record)

    def __init__(self, peer: Peer, run: Run) -> None:
        self.peer = peer
        self._run, self._run_id = run, run.id

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether this process keeps the checkpoints of the run; by default another one does."""
        return False

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        draft: Message | None = None
        for effect in self._react(vetted(event, self._run_id)):
            if not isinstance(effect, Send):
                yield effect
                continue
            if effect.message is not draft:  # all receivers of a message share its encoded header
                draft = effect.message
                message = draft.of(self.peer, self._run_id)
            yield Send(effect.to, message)

    @abstractmethod
    def _react(self, event: Event) -> Iterator[Effect]:
        """React to an event; messages leave out their sender and run."""
