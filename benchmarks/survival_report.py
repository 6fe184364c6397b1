"""The page of what killed processes cost, and its bars."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bars import Bar
from survival_runs import STEP, WORKERS, Measured


@dataclass(frozen=True)
class Measurement:
    """What was measured of a part.

    Attributes:
        base: the runs that the others are compared with, mostly undisturbed.
        other: the others; both took turns.
        seconds: the length of each run.
        every: the seconds between two kills; 0 if nobody was killed.
        date: such as `2026-11-28`.
        machine: the machine, and what other programs used of it.
    """

    base: list[Measured]
    other: list[Measured]
    seconds: float
    every: float
    date: str
    machine: str

    @property
    def both(self) -> tuple[list[Measured], list[Measured]]:
        """Both kinds of runs."""
        return self.base, self.other

    @property
    def ratios(self) -> list[float]:
        """The updates of each of the others, divided by those of the run before."""
        return [other.updates / base.updates for base, other in zip(self.base, self.other, strict=True)]

    @property
    def goodput(self) -> float:
        """Their mean."""
        return statistics.mean(self.ratios)

    def recoveries(self, role: str, what: str = "whole") -> list[float]:
        """Return the seconds of the recoveries from the losses of a role, the shortest first."""
        return sorted(seconds for each in self.other for seconds in getattr(each, what).get(role, []))


@dataclass(frozen=True)
class Part:
    """A comparison of runs.

    Attributes:
        title: its heading.
        what: what the bars say of it.
        text: how it is measured.
        columns: the names of the two kinds of runs.
        goodput: what is wanted of the goodput; None: it is published, whatever it is.
        recovery: what is wanted of the median recovery, by role.
        rollback: whether rounds may be computed again.
    """

    title: str
    what: str
    text: str
    columns: tuple[str, str] = ("undisturbed", "killed")
    goodput: float | None = None
    recovery: Mapping[str, float] | None = None
    rollback: bool = True


HEAD = f"""# Processes that are killed

{WORKERS} workers with steps of {STEP} s, most of a round, on one machine; `kill -9` of a random process every few
seconds. The goodput is the number of combined updates divided by that of the undisturbed run before. An update counts
once, even if it is computed again. A recovery is the time from a kill to the end of the next round that had not begun:
about one and a half rounds if nothing is killed. Written by `benchmarks/survival.py`.
"""


def page(parts: Mapping[str, Part], measured: Mapping[str, Measurement]) -> str:
    """Return the page of the parts that are measured."""
    there = [(part, measured[name]) for name, part in parts.items() if name in measured]
    return "\n".join([HEAD, *(line for part, found in there for line in _section(part, found))])


def _section(part: Part, found: Measurement) -> Iterator[str]:
    """Yield the lines of a part."""
    turns = "" if len(found.base) == 1 else f", {len(found.base)} times in turn"
    kills = f"; a kill every {found.every:g} s" if found.every else ""
    yield f"## {part.title}\n"
    yield f"{part.text} Runs of {found.seconds:g} s{turns}{kills}.\n{found.date}, {found.machine}.\n"
    yield f"| | {part.columns[0]} | {part.columns[1]} |"
    yield "|---|---:|---:|"
    updates, rounds, again = (
        [(sum if name != "round" else statistics.median)(getattr(each, name) for each in runs) for runs in found.both]
        for name in ("updates", "round", "again")
    )
    yield f"| combined updates | {updates[0]} | {updates[1]} |"
    yield f"| median seconds of a round | {rounds[0]:.2f} | {rounds[1]:.2f} |"
    if found.every:
        yield f"| rounds that were computed again | {again[0]} | {again[1]} |"
    each = f" ({', '.join(f'{ratio:.3f}' for ratio in found.ratios)})" if len(found.ratios) > 1 else ""
    wanted = "" if part.goodput is None else f"; wanted: {part.goodput:.2f}"
    yield f"\n{'Goodput' if found.every else 'Ratio'}: {found.goodput:.3f}{each}{wanted}.\n"
    if found.every:
        yield "| killed | times | seconds to the end of the next round | of one that had not begun: median | largest |"
        yield "|---|---:|---:|---:|---:|"
        yield from (_row(role, found) for role in sorted({role for run in found.other for role in run.kills}))
        yield ""
    for run in (*found.base, *found.other):
        if run.ended:
            yield f"A run ended before its time, and the rest of it counts as nothing: `{run.ended}`\n"


def _row(role: str, found: Measurement) -> str:
    """Return the row of the kills of a role."""
    times = sum(run.kills.get(role, 0) for run in found.other)
    following, whole = found.recoveries(role, "next"), found.recoveries(role)
    medians = [f"{statistics.median(seconds):.2f}" if seconds else "–" for seconds in (following, whole)]
    largest = f"{whole[-1]:.2f}" if whole else "–"
    unfinished = f", {times - len(whole)} of them without such an end" if times > len(whole) else ""
    return f"| {role} | {times}{unfinished} | {medians[0]} | {medians[1]} | {largest} |"


def bars_of(parts: Mapping[str, Part], measured: Mapping[str, Measurement]) -> list[Bar]:
    """Return the bars of the parts that are measured."""
    found = []
    for name, part in parts.items():
        if name in measured and part.goodput is not None:
            of = measured[name]
            what = f"{part.what} every {of.every:g} s"
            bars = [Bar.at_least(f"{what}: updates over those of an undisturbed run", of.goodput, part.goodput)]
            for role, limit in (part.recovery or {}).items():
                if seconds := of.recoveries(role):
                    title = f"{what}: seconds from the kill of a {role} to the end of the next whole round, median"
                    bars.append(Bar.at_most(title, statistics.median(seconds), limit))
            if not part.rollback:
                again = float(sum(run.again for run in of.other))
                bars.append(Bar.at_most(f"{what}: rounds that were computed again", again, 0.0))
            found += [Bar(**{**vars(bar), "date": of.date}) for bar in bars]
    return found
