"""The model on its way to a role that trains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcps.compression import Codec
from hpcps.errors import RunError
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.vectors import copy
from hpcps.protocol.messages import Flag, ModelPartition, ModelReply, Peer
from hpcps.protocol.partitioning import Bounds
from hpcps.roles.checks import wrong_size


class ModelInbox:
    """Collects the slices of one model that the servers send, each of its shard.

    Attributes:
        flags: the flags of all its messages.
        version: its version, see `ModelReply` (asynchronous).
        position: the position in the servers' log of the entry that it answers (asynchronous).
        epoch: the epochs that are over, if its messages say so; else 0. See `ModelPartition` and `ModelReply`.
        progress: the epochs so far, such as 3.4, with a policy of local steps; else 0.
        round: the round or request of the model.
        validators: those that get the model, if its messages say it; see `ModelPartition`.
        workers: likewise.
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
        self.version = self.position = self.round = self.epoch = 0
        self.progress = 0.0
        self.validators: tuple[int, ...] | None = None
        self.workers: tuple[int, ...] | None = None
        self._misses_rounds = misses_rounds
        # Slices of models after this one: a server need not wait for a role whose validator is lost.
        self._later: list[tuple[Peer, ModelPartition | ModelReply]] = []

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
        later, self._later = self._later, []
        for source, model in later:
            self.put(source, model, self.round + 1)

    def put(self, source: Peer, model: ModelPartition | ModelReply, round: int) -> None:
        """Take the next slice of a server.

        Args:
            source: the server.
            model: the slice.
            round: the round that begins with the model, or the number of the request that it answers.

        Raises:
            RunError: it is not the next slice of its server, or is of another version than the slices before.
        """
        shard, fresh = source.index, not any(self._came)
        if isinstance(model, ModelPartition):
            of, partition, place = model.round, model.partition, (0, 0)
        else:
            of, partition, place = model.request, 0, (model.position, model.version)
        values, reason = model.values, None
        if self._misses_rounds and of > round:
            if not fresh and of > self.round and self._owed(shard) is None:
                self._later.append((source, model))
                return
            round = of if fresh else self.round
        if of != round or model.shard != shard or partition != self._owed(shard):
            part = f"partition {partition} of " if partition else ""
            reason = f"it is {part}shard {model.shard} of round {of}, and round {round} begins"
        elif not fresh and place != (self.position, self.version):
            reason = f"it is version {place[1]}, and other shards are version {self.version}"
        elif Flag.DIFFERENCE in model.flags and round > self.round + 1:
            reason = f"it is the difference to a model of round {round - 1}, and this role has that of {self.round}"
        else:
            start, stop = self._shards[shard][partition]
            values, reason = self._values(model.values, start, stop, is_difference=Flag.DIFFERENCE in model.flags)
        if reason:
            raise RunError(f"{self._owner} cannot use the model that {source} sent: {reason}")
        if fresh:
            self._slices.clear()
            self.flags, self.epoch, self.progress = Flag.NONE, 0, 0.0
        self._slices.append((start, stop, values))
        self.flags |= model.flags
        self.epoch = self.epoch if model.epoch is None else model.epoch
        if isinstance(model, ModelPartition):
            self.progress = self.progress if model.progress is None else model.progress
            self.validators = self.validators if model.validators is None else model.validators
            self.workers = self.workers if model.workers is None else model.workers
        self.round, (self.position, self.version) = of, place
        self._came[shard] += 1

    def _values(self, values: Vector, start: int, stop: int, *, is_difference: bool) -> tuple[Vector, str | None]:
        """Return a slice of the model from its payload, and what is wrong with it; None if nothing is."""
        if (codec := self._codec) is None:
            return values, wrong_size(values, stop - start)
        held = self._held[start:stop]
        if not is_difference:
            reason = wrong_size(values, stop - start)
            held[:] = 0 if reason else values
            return held, reason
        part = self._layout.restrict(start, stop)
        try:
            whole, first = np.ones(len(part.blocks), np.bool_), self._layout.first_in(start)
            codec.decode_difference(part, first, whole, values, held)
        except ValueError as error:
            return held, str(error)
        return held, None

    def _owed(self, shard: int) -> int | None:
        """Return the number of the next slice of a shard; None if all have come, or if there is no such shard."""
        there = shard < len(self._shards) and self._came[shard] < len(self._shards[shard])
        return self._came[shard] if there else None
