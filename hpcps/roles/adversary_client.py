"""How a worker shows its updates to the adversary, and takes those that it sends instead."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcps.errors import RunError
from hpcps.protocol.messages import Flag, Kind, Malformed, Message, Peer, Received
from hpcps.protocol.roster import ADVERSARY, Roster
from hpcps.roles.events import Effect, Send, SetDeadline
from hpcps.roles.packer import Packed, Packer
from hpcps.spec.schema import Run


class AdversaryClient:
    """Sends copies of one worker's updates to the adversary, if the run has one. The worker does not know who attacks.

    Attributes:
        waiting: whether the worker waits for an answer.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, packer: Packer) -> None:
        self._peer = peer
        self._run_id = run_id
        self._packer = packer
        self._there = Roster.of(run).adversary
        self._shown: tuple[Packed, int] | None = None

    @property
    def waiting(self) -> bool:
        """Whether the worker waits for an answer."""
        return self._shown is not None

    def show(
        self, packed: Packed, round: int, flags: Flag = Flag.NONE, *, epoch: int | None = None
    ) -> Iterator[Effect]:
        """Send a copy of an update and wait for the answer; an absent worker says so, and waits for none.

        Args:
            packed: the update that was packed last.
            round: the round or cycle.
            flags: those that the worker sends with the update.
            epoch: the epochs of the run that are over, as far as the worker knows; None: the adversary knows.
        """
        if not self._there:
            return
        if not packed.parts:
            yield Send(ADVERSARY, Message(Kind.ABSENT, self._peer, self._run_id, round, flags=flags))
            return
        note = {} if epoch is None else {"epoch": epoch}
        copy = Message(
            Kind.COPY, self._peer, self._run_id, round, flags=flags,
            mask=packed.mask, note=note, payload=packed.payload,
        )  # fmt: skip
        self._shown = packed, round
        yield Send(ADVERSARY, copy)
        yield SetDeadline((ADVERSARY,))

    def answers(self, event: Received | Malformed) -> bool:
        """Return whether a message is the answer that the worker waits for, or came in place of it; no earlier one."""
        if self._shown is None or event.source != ADVERSARY:
            return False
        return isinstance(event, Malformed) or event.message.mask is None or event.message.round >= self._shown[1]

    def take(self, event: Received | Malformed) -> Packed:
        """Return the update to send: the one that was shown, or with the values that the adversary gives it.

        Raises:
            RunError: the answer cannot be used.
        """
        assert self._shown is not None, "it waits for an answer"
        packed, round = self._shown
        if (reason := _wrong(event, packed, round)) is not None:
            raise RunError(f"{self._peer} cannot use what {ADVERSARY} sent in round {round}: {reason}")
        assert isinstance(event, Received)
        self._shown = None
        return packed if event.message.mask is None else self._packer.replaced(packed, event.message.values)


def _wrong(event: Received | Malformed, packed: Packed, round: int) -> str | None:
    """Return what is wrong with an answer to a copy; None if nothing is."""
    if isinstance(event, Malformed):
        return event.reason
    message = event.message
    if message.kind is not Kind.REPLACEMENT:
        return f"a worker gets no {message.kind.name} from {ADVERSARY}"
    if message.mask is None:  # whatever the round: the adversary does not know it if it could not read the copy
        return None
    if message.round != round:
        return f"it is of round {message.round}"
    if not np.array_equal(message.mask, packed.mask):
        return "it has other blocks than the update"
    got, want = message.values.size, packed.payload.size
    return None if got == want else f"its payload has {got} elements instead of {want}"
