"""The progress of a whole sweep, and an estimate of the remaining time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpcps.records.status import RunStatus


@dataclass(frozen=True)
class Forecast:
    """An estimate of the time until a sweep is done.

    Attributes:
        seconds: the remaining seconds of the runs whose kind is known.
        others: the number of further runs, of kinds of which no run has made progress.
    """

    seconds: float
    others: int = 0

    def __str__(self) -> str:
        runs = f"{self.others} run{'s' * (self.others != 1)} of other kinds"
        return f"about {duration(self.seconds)} left" + (f" without {runs}" if self.others else "")


def time_left(runs: Sequence[RunStatus]) -> Forecast | None:
    """Return the estimated time until the sweep is done; None if nothing is running, no pace is known, or none is left.

    A run takes as long per epoch as the runs of its narrowest kind of which one has made progress: as those that are
    done, or else as those that are not. The estimate assumes that as many run at a time as now. It ignores failed runs,
    because only the user can decide to repeat them.
    """
    runs = _with_epochs(runs)
    running = [run for run in runs if run.state == "running"]
    paces = _paces(runs)
    if not running or not paces:
        return None
    waiting = [replace(run, left=None, epoch=0.0) for run in runs if run.state in ("not started", "stopped", "damaged")]
    now, then = ([_seconds(run, paces) for run in part] for part in (running, waiting))
    current = [each for each in now if each is not None]
    whole = (sum(current) + sum(each for each in then if each is not None)) / len(running)
    forecast = Forecast(max([*current, whole]), (now + then).count(None))
    return forecast if forecast.seconds or forecast.others else None


def work_left(runs: Sequence[RunStatus], known: Sequence[RunStatus]) -> Forecast | None:
    """Return the estimated time that unfinished runs take one after another, from where they are; None if none is left.

    Args:
        runs: the runs; failed ones count too.
        known: the runs whose paces are used; see `time_left`.
    """
    paces = _paces(_with_epochs(known))
    left = [_seconds(run, paces) for run in runs if run.state != "done"]
    return Forecast(sum(each for each in left if each is not None), left.count(None)) if left else None


def _seconds(run: RunStatus, paces: Mapping[str, float]) -> float | None:
    """Return the estimated time that an unfinished run takes from where it is; None if no pace of its kind is known."""
    if run.left is not None:
        return run.left
    pace = next((paces[kind] for kind in run.kinds if kind in paces), None)
    return None if pace is None else (run.epochs - run.epoch) * pace


def _paces(runs: Sequence[RunStatus]) -> dict[str, float]:
    """Return the mean pace of the runs of each kind: of those that are done, or else of those that are not."""
    found: tuple[dict[str, list[float]], ...] = ({}, {})
    for run in runs:
        for kind in run.kinds if run.pace is not None else ():
            found[run.state == "done"].setdefault(kind, []).append(run.pace or 0.0)
    return {kind: sum(paces) / len(paces) for kind, paces in (found[False] | found[True]).items()}


def summary(runs: Sequence[RunStatus]) -> str:
    """Describe the number of runs in each state, the finished share, and the remaining time."""
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}: {counts}"]
    whole = _with_epochs(runs)
    epochs = sum(run.epochs for run in whole)
    if epochs and states["done"] < len(runs):
        behind = sum(run.epochs if run.state == "done" else run.epoch for run in whole)
        parts.append(f"{min(99, round(100 * behind / epochs))} % of all epochs")
    forecast = time_left(runs)
    if forecast is not None:
        parts.append(str(forecast))
    return "; ".join(parts)


def _with_epochs(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """Return the runs; a run whose number of epochs is not known gets the mean of the others."""
    known = [run.epochs for run in runs if run.epochs]
    usual = round(sum(known) / len(known)) if known else 0
    return [replace(run, epochs=run.epochs or usual) for run in runs]


def duration(seconds: float) -> str:
    """Format a time, such as `35 s`, `12 min` or `3.5 h`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
