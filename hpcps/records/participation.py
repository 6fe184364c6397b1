"""How often each worker was in the rounds of a run with a quorum, and how late its other updates were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory

COLUMNS = ("worker", "rounds", "in_time", "late", "absent", "dropped", "abandoned", "missed", "staleness")
"""Of `participation`; all but the worker and the staleness count rounds of its combiner."""


@dataclass
class _Counts:
    rounds: int = 0
    arrived: int = 0
    late: int = 0
    absent: int = 0
    dropped: int = 0
    abandoned: int = 0
    stale: int = 0


def participation(directory: RunDirectory) -> pd.DataFrame | None:
    """Count the rounds of each worker.

    Args:
        directory: the folder of the run.

    Returns:
        A row per worker with `COLUMNS`: `rounds` of its combiner; those that it was in with an update made from the
        model of the round (`in_time`) or from an earlier one (`late`), or without one (`absent`); the updates that were
        `dropped`; the rounds that it `abandoned`; and the rounds that it `missed`, in which it was not. `staleness` is
        the mean of its late, dropped and abandoned updates in rounds, NaN if there is none. None without a quorum.
    """
    counts: dict[int, _Counts] = {}
    combiners = [path for path in directory.records if path.stem.startswith("validator-")]
    for path in combiners or [path for path in directory.records if path.stem == "server-0"]:
        valid, _ = read_lines(path).valid()
        lines = [line for line in valid if line.get("event") == "round" and "arrived" in line]
        # A worker that a round closed without is in a later line: at the latest in the last round, which waits for all.
        members = {worker for line in lines for worker in _workers(line.get("arrived"))}
        members |= {worker for line in lines for key in ("dropped", "abandoned") for worker, *_ in _pairs(line, key)}
        for line in lines:
            _count(line, members, counts)
    return pd.DataFrame(_rows(counts), columns=list(COLUMNS)) if counts else None


def _count(line: Mapping[str, Any], members: Iterable[int], counts: dict[int, _Counts]) -> None:
    for worker in members:
        counts.setdefault(worker, _Counts()).rounds += 1
    for worker in _workers(line.get("arrived")):
        counts[worker].arrived += 1
    for worker in _workers(line.get("absent")):
        if worker in counts:
            counts[worker].absent += 1
    for key in ("late", "dropped", "abandoned"):
        for worker, age in _pairs(line, key):
            if worker in counts:
                each = counts[worker]
                setattr(each, key, getattr(each, key) + 1)
                each.stale += age


def _rows(counts: Mapping[int, _Counts]) -> Iterable[tuple[float, ...]]:
    for worker, each in sorted(counts.items()):
        stale = each.late + each.dropped + each.abandoned
        yield (
            *(worker, each.rounds, each.arrived - each.late - each.absent, each.late, each.absent),
            *(each.dropped, each.abandoned, each.rounds - each.arrived, each.stale / stale if stale else float("nan")),
        )


def _workers(value: object) -> list[int]:
    return [each for each in value if isinstance(each, int)] if isinstance(value, list) else []


def _pairs(line: Mapping[str, Any], key: str) -> list[tuple[int, int]]:
    """Return the worker and the staleness of each entry of a field."""
    found = line.get(key)
    pairs = [each[:2] for each in found if isinstance(each, list)] if isinstance(found, list) else []
    return [(pair[0], pair[1]) for pair in pairs if len(pair) == 2 and all(isinstance(each, int) for each in pair)]


def least_present(counts: pd.DataFrame) -> str:
    """Describe in one line which worker's updates were in the fewest rounds, and how late updates were."""
    share = (counts["in_time"] + counts["late"]) / counts["rounds"]
    worker = int(counts["worker"].iloc[int(share.argmin())])
    lost = [f"{total} {name}" for name in ("late", "dropped", "abandoned") if (total := int(counts[name].sum()))]
    said = "updates of all workers were in all rounds"
    if share.min() < 1:
        said = f"updates of workers were in {100 * share.mean():.0f} % of the rounds, of worker-{worker} in "
        said += f"{100 * share.min():.0f} %"
    if absent := int(counts["absent"].sum()):
        said += f"; {absent} answer{'s were absences' if absent > 1 else ' was an absence'}"
    return f"{said}; updates: {', '.join(lost) or 'none late'}"
