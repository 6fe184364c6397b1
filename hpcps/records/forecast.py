"""The progress of a whole sweep, and an estimate of the remaining time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hpcps.records.status import RunStatus


def time_left(runs: Sequence[RunStatus]) -> float | None:
    """Return the seconds until the sweep is done; None if nothing is running or no pace is known.

    The estimate assumes that runs which have not started are as fast as the runs whose pace is known, and that as many
    run at a time as now. It ignores failed runs, because only the user can decide to repeat them.
    """
    runs = _with_epochs(runs)
    running = [run for run in runs if run.state == "running"]
    paces = [run.pace for run in runs if run.pace is not None]
    if not running or not paces:
        return None
    usual = sum(paces) / len(paces)
    current = [run.left if run.left is not None else (run.epochs - run.epoch) * usual for run in running]
    waiting = sum(run.epochs * usual for run in runs if run.state in ("not started", "stopped", "incomplete"))
    return max(*current, (sum(current) + waiting) / len(running))


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
    left = time_left(runs)
    if left is not None:
        parts.append(f"about {duration(left)} left")
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
