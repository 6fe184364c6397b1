"""How much of a run that has lost workers was of use: the updates that were combined, beside those without a loss."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.inputs import finite
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory


@dataclass(frozen=True)
class Goodput:
    """The updates of a run over time.

    Attributes:
        times: the end of each round of each combiner, in seconds since the start of the run, in order.
        updates: the updates that were combined until then.
        rate: updates per second without a loss: all workers of each combiner by the median seconds of its rounds that
            had all of them, in which nobody was lost, and before which nobody was missing; NaN if there are none.
        losses: when each process was lost.
        returns: when the combiners learned of each replacement.
        recoveries: the seconds from each loss to the end of the next round of its combiner, if there is one.
    """

    times: NDArray[np.float64]
    updates: NDArray[np.int64]
    rate: float
    losses: tuple[float, ...]
    returns: tuple[float, ...]
    recoveries: tuple[float, ...]

    @property
    def share(self) -> float:
        """The updates that were combined, divided by those at the rate without a loss in the same time."""
        return float(self.updates[-1] / (self.rate * self.times[-1]))


def goodput(directory: RunDirectory) -> Goodput | None:
    """Return the goodput of a run; None if it has no rounds that may close without a worker."""
    combiners = [path for path in directory.records if path.stem.startswith("validator-")]
    rounds: list[tuple[float, int]] = []
    losses, returns, recoveries, rate = [], [], [], 0.0
    for path in combiners or [path for path in directory.records if path.stem == "server-0"]:
        valid, _ = read_lines(path).valid()
        lines = [line for line in valid if line.get("event") in ("round", "lost", "replaced")]
        own = [line for line in lines if line["event"] == "round" and isinstance(line.get("arrived"), list)]
        rounds += [(finite(line.get("time")), len(_listed(line, "participants"))) for line in own]
        rate += _undisturbed(lines)
        returns += [finite(line.get("time")) for line in lines if line["event"] == "replaced"]
        for line in lines:
            if line["event"] == "lost":
                known, ago = finite(line.get("time")), finite(line.get("ago"))
                losses.append(known - ago)
                ends = (end for later in own if (end := finite(later.get("time"))) >= known)
                recoveries += [end - known + ago for end in islice(ends, 1)]
    if not rounds:
        return None
    times, counts = (np.array(column) for column in zip(*sorted(rounds), strict=True))
    return Goodput(times, np.cumsum(counts), rate, tuple(sorted(losses)), tuple(sorted(returns)), tuple(recoveries))


def _undisturbed(lines: list[dict[str, Any]]) -> float:
    """Return the updates per second of a combiner without a loss."""
    members = {worker for line in lines if line["event"] == "round" for worker in _listed(line, "arrived")}
    seconds, before = [], None
    for line in lines:
        whole = line["event"] == "round" and set(_listed(line, "arrived")) == members
        now = finite(line.get("time"))
        if whole and before is not None:
            seconds.append(now - before)
        before = now if whole else None
    return len(members) / median(seconds) if seconds and median(seconds) else float("nan")


def _listed(line: dict[str, Any], key: str) -> list[Any]:
    found = line.get(key)
    return found if isinstance(found, list) else []
