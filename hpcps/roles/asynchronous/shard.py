"""A server's part of the global model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcps.layout import Layout, Mask, Vector
from hpcps.messages import Flag, Kind, Message, Peer
from hpcps.packing import pack, packed_size, runs
from hpcps.roles.asynchronous.entry import Entry
from hpcps.roles.asynchronous.judgement import Announcement, Judge
from hpcps.roles.asynchronous.log import Place
from hpcps.roles.checks import not_finite
from hpcps.roles.events import Record
from hpcps.rules import AsyncRule


@dataclass(frozen=True)
class Applied:
    """What became of an update.

    Attributes:
        mask: the blocks that were added `[B]`; None if none could be.
        weight: what they were weighted with.
        rejections: records of what was refused.
    """

    mask: Mask | None
    weight: float
    rejections: list[Record]


class Shard:
    """The model's slice `[m]`, and what is done to it.

    Attributes:
        table: the layout of the whole model, as the chief described it.
        layout: its blocks and pieces of blocks.
        model: the slice.
        finite: whether everything that was ever added left it finite.
    """

    @staticmethod
    def size(server: Peer, servers: int, table: list[list[Any]]) -> int:
        """Return how many elements a server's slice of a model has."""
        start, stop = Layout.from_json(table).bounds(servers)[server.index]
        return stop - start

    def __init__(self, server: Peer, servers: int, table: list[list[Any]], model: Vector, rule: AsyncRule) -> None:
        """Take the weights to begin with, `[size(server, servers, table)]`."""
        whole = Layout.from_json(table)
        self._server = server
        self._rule = rule
        self.table = table
        self.layout = whole.restrict(*whole.bounds(servers)[server.index])
        self.model = model
        self.finite = bool(np.isfinite(self.model).all())
        self._judge = Judge(rule, self.layout)

    def take(self, entry: Entry, staleness: int, alpha: float) -> Applied:
        """Add an update to the model, weighted for its staleness; judge it first if no validator has."""
        rejections: list[Record] = []
        if entry.kind is Kind.UPDATE:
            entry, rejections = self._judged(entry, alpha)
        return Applied(entry.mask, self._apply(entry, staleness), rejections)

    def _judged(self, entry: Entry, alpha: float) -> tuple[Entry, list[Record]]:
        """Judge a worker's update, as a validator would; return what is to be applied, and what to record."""
        update = Announcement(entry.reader, entry.request, mask=entry.mask, payload=entry.payload)
        verdict = self._judge(update, alpha, None)
        payload = np.empty(packed_size(self.layout, verdict.applied), np.float32)
        pack(self.layout, self._judge.update, verdict.applied, payload)
        records = [not_finite(entry.reader, verdict.rejected)] if verdict.rejected.any() else []
        return replace(entry, mask=verdict.applied, payload=payload), records

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
        self, run_id: str, request: int, place: Place, applied: Mask | None = None, *, last: bool = False
    ) -> Message:
        """Write the model for a reader, from a copy: the next update may come before it is sent."""
        return Message(
            Kind.MODEL, self._server, run_id, request, self._server.index, Flag.LAST if last else Flag.NONE,
            applied, {"epoch": place.epoch}, self.model.copy(), place.version, place.index,
        )  # fmt: skip
