"""A server's part of the global model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.packing import pack, packed_size, runs
from hpcps.protocol.messages import Flag, Kind, Message, Peer
from hpcps.protocol.roster import shards_of
from hpcps.roles.asynchronous.filter import UpdateFilter, UpdateHeader
from hpcps.roles.asynchronous.log import Entry, LogPosition
from hpcps.roles.checks import not_finite
from hpcps.roles.events import Record
from hpcps.roles.rule_state import RuleState
from hpcps.rules import AsyncRule
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Applied:
    """The result of an update.

    Attributes:
        mask: the blocks that were applied `[B]`; None if the update was unusable.
        weight: the factor of its staleness.
        rejections: records of the rejected blocks.
    """

    mask: Mask | None
    weight: float
    rejections: list[Record]


class Shard:
    """The slice `[m]` of the model that a server keeps.

    Attributes:
        table: the layout of the whole model, as the coordinator described it.
        layout: its blocks and pieces of blocks.
        model: the slice.
        finite: whether the slice was finite after every update.
        filter: filters updates in a run without validators.
    """

    @staticmethod
    def size(server: Peer, run: Run, table: list[list[Any]]) -> int:
        """Return how many elements a server's slice of a model has."""
        start, stop = shards_of(run, Layout.from_json(table))[server.index]
        return stop - start

    def __init__(self, server: Peer, run: Run, table: list[list[Any]], model: Vector) -> None:
        """Take the initial weights, `[size(server, run, table)]`."""
        whole, rule = Layout.from_json(table), run.validation.rule
        assert isinstance(rule, AsyncRule), "the specification has been checked"
        self._server = server
        self._rule = rule
        self.table = table
        self.layout = whole.restrict(*shards_of(run, whole)[server.index])
        self.model = model
        self.finite = bool(np.isfinite(self.model).all())
        self.filter = UpdateFilter(rule, self.layout, RuleState(rule, run.seed, server))

    def take(self, entry: Entry, staleness: int, alpha: float) -> Applied:
        """Add an update to the model, weighted for its staleness; filter it first in a run without validators."""
        rejections: list[Record] = []
        if entry.kind is Kind.UPDATE:
            entry, rejections = self._filtered(entry, alpha)
        return Applied(entry.mask, self._apply(entry, staleness), rejections)

    def _filtered(self, entry: Entry, alpha: float) -> tuple[Entry, list[Record]]:
        """Filter a worker's update, as a validator would; return the rest of it, and records of the rejected blocks."""
        update = UpdateHeader(entry.reader, entry.request, mask=entry.mask, payload=entry.payload)
        filtered = self.filter(update, alpha)
        payload = np.empty(packed_size(self.layout, filtered.applied), np.float32)
        pack(self.layout, self.filter.update, filtered.applied, payload)
        records = [not_finite(entry.reader, filtered.rejected)] if filtered.rejected.any() else []
        return replace(entry, mask=filtered.applied, payload=payload), records

    def _apply(self, entry: Entry, staleness: int) -> float:
        """Add an update, weighted by the rule for its staleness; return the weight."""
        weight = self._rule.weight(staleness)
        if entry.mask is None or entry.payload is None:
            return weight
        taken = 0
        with np.errstate(over="ignore", invalid="ignore"):
            for start, stop in runs(self.layout, entry.mask):
                part = entry.payload[taken : taken + stop - start]
                self.model[start:stop] += part if weight == 1.0 else part * np.float32(weight)
                taken += stop - start
                self.finite = self.finite and bool(np.isfinite(self.model[start:stop]).all())
        return weight

    def reply(
        self, run_id: str, request: int, place: LogPosition, applied: Mask | None = None, *, last: bool = False
    ) -> Message:
        """Return the message with the model for a reader, a copy: the next update may come before it is sent."""
        return Message(
            Kind.MODEL, self._server, run_id, request, self._server.index, Flag.LAST if last else Flag.NONE,
            applied, {"epoch": place.epoch}, self.model.copy(), place.version, place.index,
        )  # fmt: skip
