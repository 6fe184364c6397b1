"""What is asked of the servers: the entries of their common log."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpcps.layout import Mask, Vector
from hpcps.messages import Flag, Kind, Message, Peer
from hpcps.roles.checkpointing import KEEPER

UPDATES = (Kind.APPLY, Kind.UPDATE)
"""Entries that change the model."""


@dataclass(frozen=True)
class Entry:
    """Something that all servers do at the same place of their log; whoever it is for then gets the model.

    Attributes:
        kind: APPLY (what a validator accepted), UPDATE (a worker's, which the servers judge), READ or STOP.
        submitter: who asks.
        number: the submitter's count of its entries, from 1.
        reader: who gets the model.
        request: which of the reader's requests the model answers.
        base: the model version that the update was made from.
        epoch: the submitter's epoch.
        mask: the blocks of this shard that `payload` holds.
        payload: float32, packed.
        flags: what a checkpoint is for.
    """

    kind: Kind
    submitter: Peer
    number: int
    reader: Peer
    request: int
    base: int = 0
    epoch: int = 0
    mask: Mask | None = None
    payload: Vector | None = None
    flags: Flag = Flag.NONE

    @staticmethod
    def checkpoint(flags: Flag) -> Entry:
        """Return server 0's own entry, at which everyone writes a checkpoint."""
        return Entry(Kind.CHECKPOINT, KEEPER, 0, KEEPER, 0, flags=flags)

    def message(self, run_id: str, shard: int) -> Message:
        """Write it for one server."""
        note = {"epoch": self.epoch}
        if self.submitter.role == "validator":
            note["request"] = self.request
            if self.reader != self.submitter:
                note["worker"] = self.reader.index
        return Message(
            self.kind, self.submitter, run_id, self.number, shard,
            mask=self.mask, note=note, payload=self.payload, version=self.base,
        )  # fmt: skip

    @staticmethod
    def of(message: Message) -> Entry:
        """Read it.

        Raises:
            ValueError: it lacks something; the reason in one line.
        """
        epoch, worker, request = (message.note.get(name, 0) for name in ("epoch", "worker", "request"))
        if not all(isinstance(number, int) and number >= 0 for number in (epoch, worker, request)):
            raise ValueError(f"its note {message.note} has something other than counts")
        reader = message.sender
        if reader.role == "worker":
            request = message.round
        elif "worker" in message.note:
            reader = Peer("worker", worker)
        return Entry(
            message.kind, message.sender, message.round, reader, request, message.version, epoch,
            message.mask, message.payload,
        )  # fmt: skip

    def kept(self) -> Entry:
        """Return it with a payload of its own, which outlives the message."""
        return self if self.payload is None else replace(self, payload=self.payload.copy())

    def refused(self) -> Entry:
        """Return what is left of it if nothing of it can be used: its sender still gets the model."""
        return replace(self, kind=Kind.READ, mask=None, payload=None)
