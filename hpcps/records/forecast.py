"""How far a whole sweep is, and when it will be done at the pace so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpcps.records.status import RunStatus


def time_left(runs: Sequence[RunStatus]) -> float | None:
    """Return the seconds until nothing is left to play; None if nothing is running or no pace is known.

    What has not begun is taken to be as fast as the runs whose pace is known, and to be played as many at a time as
    are now. Runs that failed are not counted: whether they are tried again is up to their user.
    """
    running = [run for run in runs if run.state == "running"]
    paces = [run.pace for run in runs if run.pace is not None]
    if not running or not paces:
        return None
    usual = sum(paces) / len(paces)
    current = [run.left if run.left is not None else (run.epochs - run.epoch) * usual for run in running]
    waiting = sum(run.epochs * usual for run in runs if run.state in ("not started", "stopped"))
    return max(*current, (sum(current) + waiting) / len(running))


def summary(runs: Sequence[RunStatus]) -> str:
    """Say how many runs are in which state, how much of all is done, and how long the rest will take."""
    states = Counter(run.state for run in runs)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}: {counts}"]
    epochs = sum(run.epochs for run in runs)
    if epochs and states["done"] < len(runs):
        behind = sum(run.epochs if run.state == "done" else run.epoch for run in runs)
        parts.append(f"{100 * behind / epochs:.0f} % of all epochs")
    left = time_left(runs)
    if left is not None:
        parts.append(f"about {duration(left)} left")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Write a time for people, such as `35 s`, `12 min` or `3.5 h`."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
