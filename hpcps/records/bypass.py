"""Which blocks of the workers' updates entered the model: those that the attack had changed, and the honest ones.

No role knows both: a worker records which of its blocks the attack changed, and a combiner which sent blocks the rule
kept out, without knowing why. The records are joined here.
"""

from __future__ import annotations

from collections.abc import Iterable
from string import hexdigits
from typing import Any

import numpy as np
import pandas as pd

from hpcps.records.table import tabulate

EVENT = "bypass"
"""The event of the rows that count blocks by round; no process writes it."""

COUNTS = ("byzantine_sent", "byzantine_entered", "honest_sent", "honest_entered")
"""Counts of blocks in the rows of a worker's rounds: those sent, and those of them that entered the model."""

JOINED = frozenset({"kept_out", "attacked"})
"""The fields of record lines that are only for the join; the table does not have them."""

_ROWS = 200
"""The largest number of rows of a run; longer runs have several rounds in a row."""


class Bypass:
    """Joins the records of a synchronous run: first those of the combiners, then those of the workers."""

    def __init__(self) -> None:
        self._kept_out: dict[tuple[int, int], int] = {}
        self._present: set[tuple[int, int]] = set()
        self._rounds: set[int] = set()
        self._unknown: set[int] = set()

    def join(self, lines: Iterable[dict[str, Any]]) -> None:
        """Take the lines of one process; add `COUNTS` to the rounds of a worker whose combiners recorded them."""
        for line in lines:
            if line.get("event") != "round":
                continue
            if line.get("role") == "worker":
                line |= self._counts(line)
            elif isinstance(found := line.get("kept_out"), list):
                self._take(line, found)
            elif "kept_out" in line and isinstance(round := line.get("round"), int):
                self._unknown.add(round)  # the rule of a combiner did not state which updates it accepted

    def _take(self, line: dict[str, Any], found: list[Any]) -> None:
        round, participants = line.get("round"), line.get("participants")
        if not isinstance(round, int) or not isinstance(participants, list):
            return
        self._rounds.add(round)
        self._present.update((round, worker) for worker in participants if isinstance(worker, int))
        for each in found:
            match each:
                case [int(worker), str(blocks)]:
                    # Each of several servers records its shard; a block that one keeps out does not count as entered.
                    self._kept_out[round, worker] = self._kept_out.get((round, worker), 0) | _bits(blocks)

    def _counts(self, line: dict[str, Any]) -> dict[str, int]:
        keys = ("round", "index", "blocks_sent", "blocks_attacked")
        numbers = [number for key in keys if isinstance(number := line.get(key), int)]
        if len(numbers) < len(keys) or numbers[0] not in self._rounds or numbers[0] in self._unknown:
            return {}
        round, worker, sent, attacked_blocks = numbers
        byzantine = min(sent, attacked_blocks)  # an attack may withhold an update
        entered = honest = 0
        if (round, worker) in self._present:
            kept_out = self._kept_out.get((round, worker), 0)
            # A worker lists the blocks that are attacked if it sends others, too.
            attacked = _bits(line.get("attacked")) if 0 < byzantine < sent else -bool(byzantine)
            entered = byzantine - (kept_out & attacked).bit_count()
            honest = sent - byzantine - (kept_out & ~attacked).bit_count()
        return dict(zip(COUNTS, (byzantine, entered, sent - byzantine, honest), strict=True))


def _bits(text: object) -> int:
    """Return the number of a mask; 0 if it is none, as in a damaged record."""
    return int(text, 16) if isinstance(text, str) and set(text) <= set(hexdigits) and text else 0


def count_by_round(table: pd.DataFrame) -> pd.DataFrame:
    """Sum the counts of all workers by round.

    Args:
        table: a run's records.

    Returns:
        A row per round, or per group of rounds of a long run: `event` ("bypass"), `round` (the last one of the group),
        and `COUNTS`; no rows if the records do not have the counts.
    """
    if not {"round", *COUNTS} <= set(table):
        return tabulate([])
    rows = table[["round", *COUNTS]].dropna().astype(np.int64)
    together = -(-(rows["round"].max() + 1) // _ROWS) if len(rows) else 1
    sums = rows.groupby(rows["round"] // together).agg({"round": "max", **dict.fromkeys(COUNTS, "sum")})
    return sums.assign(event=EVENT)
