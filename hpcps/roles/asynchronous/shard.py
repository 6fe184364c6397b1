"""The slice of the model that an asynchronous server keeps, and the earlier weights that some rules need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.aggregation.rule_state import RuleState
from hpcps.compression import Codec
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, private
from hpcps.numerics.state import State
from hpcps.numerics.vectors import copied, copy, empty_like, finite, on_host, pack, unpack
from hpcps.optimizers import NoOptimizer, Stepper
from hpcps.protocol.messages import Flag, ModelReply, Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import shards_of
from hpcps.registry.failures import errors_of
from hpcps.roles.asynchronous.buffer import UpdateBuffer
from hpcps.roles.asynchronous.filter import UpdateFilter
from hpcps.roles.asynchronous.log import EntryKind, LogEntry, LogPosition
from hpcps.roles.checks import not_finite
from hpcps.roles.events import Record
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.rules import Rule
from hpcps.rules.asynchronous import AsyncRule, Backup
from hpcps.spec.schema import Run


class Backups:
    """The weights b of `DcAsgd`: those that each worker pulled last, or those before the last update of each block.

    They are on the host, also if the model is on a device.
    """

    def __init__(self, backup: Backup, model: Vector) -> None:
        """Begin with the first model of a shard, `[m]`."""
        self._pulled: dict[Peer, Vector] = {}
        self._previous = on_host(model).copy() if backup == "previous" else None

    def pull(self, reader: Peer, model: Vector) -> None:
        """Note that a role gets this model `[m]`, which nobody changes."""
        if self._previous is None and reader.role == "worker":
            self._pulled[reader] = on_host(model)

    def compensated(self, rule: AsyncRule, entry: LogEntry, changed: list[tuple[int, int]], model: Vector) -> Vector:
        """Return what the rule makes of an update's payload, on the host; the update is applied next.

        Args:
            rule: the rule.
            entry: the update, with a payload.
            changed: the ranges of the model that it changes, at least one.
            model: the model `[m]` before the update.
        """
        payload, parts, taken = on_host(entry.payload), [], 0
        for start, stop in changed:
            drift = self._drift(entry.reader, model, start, stop)
            with errors_of(rule, "its compensate() failed", foreign=True):
                parts.append(rule.compensate(payload[taken : taken + stop - start], drift, entry.rate))
            taken += stop - start
        return np.concatenate(parts)

    def _drift(self, worker: Peer, model: Vector, start: int, stop: int) -> Vector:
        """Return the difference between the model and a worker's weights, and keep the model as previous weights."""
        backup = self._pulled[worker] if self._previous is None else self._previous
        weights = on_host(model[start:stop])
        drift: Vector = weights - backup[start:stop]
        if self._previous is not None:
            self._previous[start:stop] = weights
        return drift

    def state(self) -> State:
        """Return the previous weights; after a resume every worker pulls the model."""
        return State({} if self._previous is None else {"previous": self._previous})

    def restore(self, state: State) -> None:
        """Restore the previous weights."""
        if self._previous is not None:
            self._previous[:] = state.arrays["previous"]


class SentModels:
    """What each reader has of a shard's model until it asks for the next one, and what encodes the difference to that.

    Attributes:
        held: of each reader, the model that it has `[m]`.
    """

    def __init__(self, layout: Layout, first_block: int, codec: Callable[[], Codec | None], allocate: Allocate) -> None:
        """Begin without readers.

        Args:
            layout: the blocks of the shard, the first of which has the index `first_block` in the model.
            first_block: see `layout`.
            codec: returns a new codec of models; None if they are sent as they are.
            allocate: allocates the memory of replies.
        """
        self.held: dict[Peer, Vector] = {}
        self._layout, self._first_block = layout, first_block
        self._codec, self._allocate = codec, allocate
        self._encoders: dict[Peer, tuple[Codec, Vector]] = {}
        self._current: set[Peer] = set()
        self._resumed: dict[Peer, Vector] = {}

    def changed(self) -> None:
        """Note that the model has changed since all replies."""
        self._current.clear()

    def reply(self, reader: Peer, model: Vector, *, whole: bool) -> tuple[Vector, Flag]:
        """Return the payload for a reader: the whole model, or with a codec the difference to the model that it has."""
        first, encoder = reader not in self.held, self._encoder(reader)
        if first:
            self.held[reader] = self._allocate(self._layout.size)
        held = self.held[reader]
        self._current.add(reader)
        if encoder is None or first or whole:
            copy(self._resumed.pop(reader, model), held)
            return held, Flag.NONE
        blocks = np.ones(len(self._layout.blocks), np.bool_)
        codec, room = encoder
        return codec.encode_difference(self._layout, self._first_block, blocks, model, held, room), Flag.DIFFERENCE

    def _encoder(self, reader: Peer) -> tuple[Codec, Vector] | None:
        """Return the codec of a reader and memory for its encodings; None if models are sent as they are."""
        if reader not in self._encoders and (codec := self._codec()) is not None:
            self._encoders[reader] = codec, self._allocate(codec.most_elements(self._layout, self._first_block))
        return self._encoders.get(reader)

    def state(self) -> State:
        """Return what the codecs keep, and what the readers of the present model have: so they get it again."""
        parts = {}
        for reader, (codec, _) in self._encoders.items():
            held = {"held": self.held[reader]} if reader in self._current else {}
            parts[str(reader)] = State(held).having(encoding=codec.state())
        return State().having(**parts)

    def restore(self, state: State, readers: Iterable[Peer]) -> None:
        """Restore what the codecs keep; readers without the present model get it whole."""
        for reader in readers:
            if (encoder := self._encoder(reader)) is not None and str(reader) in state.facts:
                part = state.part(str(reader))
                encoder[0].restore(part.part("encoding"))
                if "held" in part.arrays:
                    self._resumed[reader] = part.arrays["held"]


@dataclass(frozen=True)
class Applied:
    """The result of an update.

    Attributes:
        mask: the blocks that were applied `[B]`; None if the entry holds no blocks.
        weight: the factor of its staleness.
        rejections: records of the rejected blocks.
        fields: further fields of the record: what the server optimizer says of its step, and of the buffer.
    """

    mask: Mask | None
    weight: float
    rejections: list[Record]
    fields: dict[str, object]


class AsyncShard:
    """The slice `[m]` of the model that a server keeps.

    Attributes:
        table: the layout of the whole model, as the coordinator described it.
        layout: its blocks and pieces of blocks.
        first_block: the index in the model of the first of them.
        decoder: decodes the updates of workers.
        whole: the slice as one partition.
        model: the slice.
        finite: whether the slice was finite after every update.
        filter: filters updates in a run without validators.
        buffer: the updates that are combined together, in a run with a buffer.
        sent: the models that readers have.
        backups: earlier weights, if the rule compensates the delay of updates.
        stepper: the server optimizer; None if updates are added to the model.
    """

    @staticmethod
    def size(server: Peer, run: Run, table: list[list[Any]]) -> int:
        """Return how many elements a server's slice of a model has."""
        start, stop = shards_of(run, Layout.from_json(table))[server.index]
        return stop - start

    def __init__(
        self,
        server: Peer,
        run: Run,
        table: list[list[Any]],
        model: Vector,
        resources: Resources = ALONE,
        weights: UpdateWeights = ALIKE,
    ) -> None:
        """Copy the initial weights, `[size(server, run, table)]`."""
        whole, rule = Layout.from_json(table), run.filter
        self._index = server.index
        self._rule = rule
        self.table = table
        start, stop = shards_of(run, whole)[server.index]
        self.layout, self.first_block = whole.restrict(start, stop), whole.first_in(start)
        self.decoder = UpdateDecoder.of(run, whole, (start, stop))
        self.whole = Partition.of(self.layout, (0, self.layout.size))
        self.model = resources.local(self.layout.size)
        self.model[:] = model
        self.finite = finite(self.model)
        # Validators filter instead, if there are any.
        allocate = private if run.topology.validators else resources.local
        self.filter = UpdateFilter(rule, self.layout, RuleState(rule, run.seed, server), allocate, weights)
        self.buffer: UpdateBuffer | None = None
        if run.asynchronous.buffer is not None and isinstance(run.validation.rule, Rule):
            kept = RuleState(run.validation.rule, run.seed, server)
            self.buffer = UpdateBuffer(run.asynchronous.buffer, run.validation.rule, self.layout, kept, weights)
        self._staleness = run.asynchronous.staleness
        new_codec = partial(Codec.of, run.communication.compression, whole, "model")
        self.sent = SentModels(self.layout, self.first_block, new_codec, resources.allocate)
        self.backups = Backups(rule.compares_with, self.model) if rule.compares_with else None
        optimizer = run.server_optimizer
        adds = isinstance(optimizer, NoOptimizer)
        self.stepper = None if adds else Stepper(optimizer, self.layout.size, resources.local)
        self._whole = resources.local(0 if adds and self.buffer is None else self.layout.size)

    def take(self, entry: LogEntry, staleness: int, alpha: float) -> Applied:
        """Add an update to the model, weighted for its staleness; filter it first in a run without validators.

        With a buffer, put it there; the update that fills the buffer changes the model.
        """
        if self.buffer is not None:
            return self._buffered(entry, self.buffer, staleness, alpha)
        rejections: list[Record] = []
        if entry.kind is EntryKind.UPDATE:
            entry, rejections = self._filtered(entry, alpha)
        weight = self._apply(entry, staleness)
        self.sent.changed()
        norms = {} if self.stepper is None else self.stepper.turn()
        return Applied(entry.mask, weight, rejections, norms)

    def _buffered(self, entry: LogEntry, buffer: UpdateBuffer, staleness: int, alpha: float) -> Applied:
        """Put an update into the buffer; if that is full, add what the rule makes of it, multiplied by alpha."""
        assert entry.mask is not None, "an update of the log has blocks"
        factor, fields = self._staleness.weight(staleness), {"blocks": int(entry.mask.sum())}
        buffer.put(entry, factor)
        if not buffer.full:
            return Applied(None, factor, [], {**fields, "buffered": len(buffer)})
        found, rejections = buffer.combine(self._whole)
        with np.errstate(over="ignore", invalid="ignore"):
            if alpha != 1.0:
                self._whole *= np.float32(alpha)
            if self.stepper is None:
                np.add(self.model, self._whole, out=self.model)
                self.finite = self.finite and finite(self.model)
            else:
                self._step(self.stepper)
        self.sent.changed()
        stepped = {} if self.stepper is None else self.stepper.turn()
        return Applied(None, factor, rejections, {**fields, "buffered": 0, **found, **stepped})

    def _filtered(self, entry: LogEntry, alpha: float) -> tuple[LogEntry, list[Record]]:
        """Filter a worker's update, as a validator would; return the rest of it, and records of the rejected blocks."""
        filtered = self.filter(entry, alpha)
        payload = empty_like(self.filter.update, self.layout.packed_size(filtered.applied))
        pack(self.layout, self.filter.update, filtered.applied, payload)
        records = [not_finite(entry.reader, filtered.rejected)] if filtered.rejected.any() else []
        return replace(entry, mask=filtered.applied, payload=payload, rate=filtered.rate), records

    def _apply(self, entry: LogEntry, staleness: int) -> float:
        """Add an update, weighted by the rule for its staleness; return the weight."""
        with errors_of(self._rule, f"its weight({staleness}) failed", foreign=True):
            weight = self._rule.weight(staleness)
        if entry.mask is None or entry.payload is None:
            if self.stepper is not None:
                self._whole[:] = 0
                self._step(self.stepper)
            return weight
        changed, payload, taken = self.layout.runs(entry.mask), entry.payload, 0
        with np.errstate(over="ignore", invalid="ignore"):
            if self.backups is not None and changed:
                payload = self.backups.compensated(self._rule, entry, changed, self.model)
            if weight != 1.0:
                payload = copied(payload)
                payload *= np.float32(weight)
            if self.stepper is not None:
                unpack(self.layout, payload, entry.mask, self._whole)
                self._step(self.stepper)
                return weight
            for start, stop in changed:
                model = self.model[start:stop]
                np.add(model, payload[taken : taken + stop - start], out=model)
                taken += stop - start
            # Once, because a device is waited for; what lies between has not changed.
            if changed and self.finite:
                self.finite = finite(self.model[changed[0][0] : changed[-1][1]])
        return weight

    def _step(self, stepper: Stepper) -> None:
        """Change the model by the update in `_whole`, in which blocks that do not come are zero.

        Every update of the log is a step, also one of which no block is applied: so all servers count the same steps.
        """
        self.finite = stepper.apply(self._whole, self.model, self.model) and self.finite

    def reply(
        self,
        reader: Peer,
        request: int,
        place: LogPosition,
        applied: Mask | None = None,
        *,
        last: bool = False,
        whole: bool = False,
    ) -> ModelReply:
        """Return the message with the model for a reader: a copy, because the next update may come before it is read.

        Where processes share memory the copy is in it, so that the reader reads it in place. With a compressor of
        models, the first and the last are whole, and each other one is the difference to what the reader has, unless
        `whole`.
        """
        payload, flags = self.sent.reply(reader, self.model, whole=last or whole)
        flags |= Flag.LAST if last else Flag.NONE
        if self.backups is not None:
            self.backups.pull(reader, self.sent.held[reader])
        return ModelReply(
            request=request, shard=self._index, version=place.version, position=place.index, epoch=place.epoch,
            flags=flags, applied=applied, values=payload,
        )  # fmt: skip
