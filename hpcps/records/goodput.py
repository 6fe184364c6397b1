"""How much of a run that has lost processes was of use: the updates that were combined, beside those without a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.inputs import finite
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory

_LOSSES = ("lost", "took_over", "standby_lost")
_RETURNS = ("replaced", "standby_began")


@dataclass(frozen=True)
class RecordedLoss:
    """The loss of a process.

    Attributes:
        kind: its role, such as `worker`, or `standby`.
        time: when it was lost; of a server, when its standby took its place.
        recovery: the seconds until the end of the next round that has an update; None if there is none.
    """

    kind: str
    time: float
    recovery: float | None


@dataclass(frozen=True)
class Goodput:
    """The updates of a run over time.

    Attributes:
        times: the end of each round, in seconds since the start of the run, in order.
        updates: the updates that were combined until then.
        rate: updates per second without a loss: all workers by the median seconds of the rounds that had all of them,
            in which nobody was lost, and before which nobody was missing; NaN if there are none.
        losses: the losses, in order.
        returns: when the others learned of each replacement.
    """

    times: NDArray[np.float64]
    updates: NDArray[np.int64]
    rate: float
    losses: tuple[RecordedLoss, ...]
    returns: tuple[float, ...]

    @property
    def share(self) -> float:
        """The updates that were combined, divided by those at the rate without a loss in the same time."""
        return float(self.updates[-1] / (self.rate * self.times[-1]))

    @property
    def recoveries(self) -> dict[str, list[float]]:
        """The seconds of the recoveries from the losses of each kind of process."""
        found: dict[str, list[float]] = {}
        for loss in self.losses:
            if loss.recovery is not None:
                found.setdefault(loss.kind, []).append(loss.recovery)
        return found


def goodput(directory: RunDirectory) -> Goodput | None:
    """Return the goodput of a run; None if it has no rounds that may close without a worker."""
    events = ("round", *_LOSSES, *_RETURNS)
    lines = {
        path.stem: [line for line in read_lines(path).valid()[0] if line.get("event") in events]
        for path in directory.records
        if path.stem.startswith(("validator-", "server-"))
    }
    combined = {
        (name, line.get("round")): line
        for name, own in lines.items()
        for line in own
        if line["event"] == "round" and isinstance(line.get("arrived"), list)
    }
    if not combined:
        return None
    validators = [name for name in lines if name.startswith("validator-")]
    rounds = [
        (line, [found for name in _combiners(line, validators) if (found := combined.get((name, line.get("round"))))])
        for line in lines.get("server-0", ())
        if line["event"] == "round"
    ]
    if not rounds:
        return None
    ends = [(finite(line.get("time")), of) for line, of in rounds]
    counts = [sum(len(_listed(each, "participants")) for each in of) for _, of in ends]
    losses = [loss for name, own in lines.items() for loss in _losses(name, own)]
    returns = [finite(line.get("time")) for own in lines.values() for line in own if line["event"] in _RETURNS]
    return Goodput(
        np.array([time for time, _ in ends]),
        np.cumsum(counts),
        _undisturbed(rounds, losses),
        tuple(sorted(losses, key=lambda loss: loss.time)),
        tuple(sorted(returns)),
    )


def _combiners(line: Mapping[str, Any], validators: list[str]) -> list[str]:
    """Return the processes whose updates enter the model in a round of server 0, which names them if some may not."""
    if "validators" in line:
        return [f"validator-{v}" for v in _listed(line, "validators")]
    return validators or ["server-0"]


def _losses(name: str, lines: Sequence[Mapping[str, Any]]) -> list[RecordedLoss]:
    """Return the losses that the record of a process says."""
    ends = [
        finite(line.get("time"))
        for line in lines
        if line["event"] == "round" and line.get("validators", True)  # a round without a validator has no update
    ]
    found = []
    for line in lines:
        if line["event"] in _LOSSES:
            known, ago = finite(line.get("time")), finite(line.get("ago", 0.0))
            kind = str(line.get("process", name)).partition("-")[0]
            if kind == "evaluator":
                continue  # nobody waits for it
            recovery = next((end - known + ago for end in ends if end >= known), None)
            found.append(RecordedLoss(kind, known - ago, recovery))
    return found


def _undisturbed(
    rounds: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]], losses: Sequence[RecordedLoss]
) -> float:
    """Return the updates per second without a loss."""
    arrived = [{worker for each in of for worker in _listed(each, "arrived")} for _, of in rounds]
    members = set().union(*arrived)
    seconds, before = [], None
    for (line, _), there in zip(rounds, arrived, strict=True):
        now, whole = finite(line.get("time")), there == members
        if whole and before is not None and not any(before <= loss.time < now for loss in losses):
            seconds.append(now - before)
        before = now if whole else None
    return len(members) / median(seconds) if seconds and median(seconds) else float("nan")


def _listed(line: Mapping[str, Any], key: str) -> list[Any]:
    found = line.get(key)
    return found if isinstance(found, list) else []
