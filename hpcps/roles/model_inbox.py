"""The model on its way to a role that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcps.compression import Codec
from hpcps.errors import RunError
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.vectors import copy
from hpcps.protocol.messages import Flag, Message, Peer
from hpcps.protocol.partitioning import Bounds
from hpcps.roles.checks import wrong_size


class ModelInbox:
    """Collects the slices of one model that the servers send, each of its shard.

    Attributes:
        flags: the flags of all its messages.
        version: how many updates it holds (asynchronous).
        index: the place in the servers' log of the entry that it answers (asynchronous).
        note: the notes of all its messages.
        round: the round or request of the model.
    """

    def __init__(
        self,
        owner: Peer,
        layout: Layout,
        shards: Sequence[Sequence[Bounds]],
        codec: Codec | None = None,
        *,
        misses_rounds: bool = False,
    ) -> None:
        """Wait for the first model.

        Args:
            owner: the role that collects.
            layout: the blocks of the d elements.
            shards: for every server the slices that it sends, in order.
            codec: decodes the differences between models; None if models are sent as they are.
            misses_rounds: whether the next model may be that of a later round than the next.
        """
        self._owner = owner
        self._shards = shards
        self._came = [0] * len(shards)
        self._layout, self._codec = layout, codec
        # What differences are added to.
        self._held: Vector = np.zeros(layout.size if codec else 0, np.float32)
        # Not copied: nobody changes the payloads before this process has answered.
        self._slices: list[tuple[int, int, Vector]] = []
        self.flags = Flag.NONE
        self.version = self.index = self.round = 0
        self._misses_rounds = misses_rounds
        self.note: dict[str, Any] = {}

    @property
    def complete(self) -> bool:
        """Whether the whole model has come."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The servers whose slices have not all come."""
        owed = zip(self._came, self._shards, strict=True)
        return tuple(Peer("server", s) for s, (came, slices) in enumerate(owed) if came < len(slices))

    @property
    def model(self) -> Vector:
        """A copy of the model, `[d]`."""
        whole: Vector = np.empty(self._layout.size, np.float32)
        self.read(whole)
        return whole

    def read(self, out: Vector, residual: Vector | None = None) -> None:
        """Write the model, plus a residual if there is one, into `out`; all are `[d]`."""
        for start, stop, values in self._slices:
            if residual is None:
                copy(values, out[start:stop])
            else:
                np.add(values, residual[start:stop], out=out[start:stop])

    def clear(self) -> None:
        """Begin to collect the next model."""
        self._came = [0] * len(self._shards)

    def put(self, message: Message, round: int) -> None:
        """Take a MODEL message.

        Args:
            message: the message.
            round: the round that begins with the model, or the number of the request that it answers.

        Raises:
            RunError: if it is not the next slice of its server, or of another version than the slices before.
        """
        shard = message.sender.index
        fresh, values = not any(self._came), message.values
        reason: str | None
        if self._misses_rounds and message.round > round:
            round = message.round if fresh else self.round
        if message.round != round or message.shard != shard or message.partition != self._owed(shard):
            part = f"partition {message.partition} of " if message.partition else ""
            reason = f"it is {part}shard {message.shard} of round {message.round}, and round {round} begins"
        elif not fresh and (message.index, message.version) != (self.index, self.version):
            reason = f"it is version {message.version}, and other shards are version {self.version}"
        elif Flag.DIFFERENCE in message.flags and round > self.round + 1:
            reason = f"it is the difference to a model of round {round - 1}, and this role has that of {self.round}"
        else:
            start, stop = self._shards[shard][message.partition]
            values, reason = self._values(message, start, stop)
        if reason:
            raise RunError(f"{self._owner} cannot use the model that {message.sender} sent: {reason}")
        if fresh:
            self._slices.clear()
        self._slices.append((start, stop, values))
        self.flags = message.flags if fresh else self.flags | message.flags
        self.note = message.note if fresh else self.note | message.note
        self.index, self.version, self.round = message.index, message.version, message.round
        self._came[shard] += 1

    def _values(self, message: Message, start: int, stop: int) -> tuple[Vector, str | None]:
        """Return the slice of the model in a message, and what is wrong with it; None if nothing is."""
        if (codec := self._codec) is None:
            return message.values, wrong_size(message, stop - start)
        held = self._held[start:stop]
        if Flag.DIFFERENCE not in message.flags:
            reason = wrong_size(message, stop - start)
            held[:] = 0 if reason else message.values
            return held, reason
        part = self._layout.restrict(start, stop)
        try:
            whole, first = np.ones(len(part.blocks), np.bool_), self._layout.first_in(start)
            codec.decode_difference(part, first, whole, message.values, held)
        except ValueError as error:
            return held, str(error)
        return held, None

    def _owed(self, shard: int) -> int | None:
        """Return the number of the next slice of a shard; None if all have come, or if there is no such shard."""
        there = shard < len(self._shards) and self._came[shard] < len(self._shards[shard])
        return self._came[shard] if there else None
