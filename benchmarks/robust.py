"""Measures every synchronous rule, and pre-aggregators before rules, on 16 updates; part of `rules.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from bars import Bar
from byzfl_peer import THREADS, Beside, ByzFL, Form
from processes import MeasurementError

from hpcps.numerics.updates import Destination, Updates
from hpcps.rules import (
    Aksel,
    Arc,
    Arrays,
    Average,
    Bucketing,
    Bulyan,
    Caf,
    CenteredClipping,
    Cge,
    Clipping,
    Context,
    Dnc,
    Fltrust,
    GeometricMedian,
    Krum,
    Mda,
    Meamed,
    Median,
    Monna,
    MultiKrum,
    Nnm,
    NormClipping,
    Phocas,
    Rlr,
    Rule,
    SignMajority,
    Smea,
    TrimmedMean,
    Zeno,
    combine_finite,
)

N, F = 16, 3
COORDINATES, GEOMETRY, ROWS = 2.5, 8.0, 16.0
"""The largest times in read passes: of rules per coordinate, of rules that compare updates, of pre-aggregators."""
FASTER = 10.0
"""How many times faster than ByzFL some rules must be; all others at least as fast."""
SMALLER = 5
"""ByzFL gets a part of the coordinates where it would need 20 GB for all of them."""
COMPARED = 20_000
"""The coordinates on which the results of both are compared."""


@dataclass(frozen=True)
class Case:
    """A rule to measure.

    Attributes:
        rule: the rule.
        limit: its largest time, in read passes.
        byzfl: what ByzFL computes: its pre-aggregators and its rule, by our names; empty if it has no such rule.
        faster: how many times faster than ByzFL it must be.
        small: whether ByzFL gets a part of the coordinates only.
        same: whether ByzFL's result must be equal up to rounding.
    """

    rule: Rule
    limit: float
    byzfl: str = ""
    faster: float = 1.0
    small: bool = False
    same: bool = True


CASES = {
    "mean": Case(Average(), COORDINATES, "average", 0.9),
    "trimmed_mean": Case(TrimmedMean(f=F), COORDINATES, "trimmed_mean"),
    "median": Case(Median(), COORDINATES, "median"),
    "phocas": Case(Phocas(f=F), COORDINATES),
    "meamed": Case(Meamed(f=F), COORDINATES, "meamed", small=True),
    "sign_majority": Case(SignMajority(), COORDINATES),
    "rlr": Case(Rlr(), COORDINATES),
    "zeno": Case(Zeno(rho=-1.0, epsilon=10.0), COORDINATES),
    "bulyan": Case(Bulyan(f=F), 9.0),
    "krum": Case(Krum(f=F, neighbours="n-f-1"), GEOMETRY, "krum"),
    "multi_krum": Case(MultiKrum(f=F, neighbours="n-f-1"), GEOMETRY, "multi_krum"),
    "mda": Case(Mda(f=F), GEOMETRY, "mda", FASTER),
    "smea": Case(Smea(f=F), GEOMETRY),
    "caf": Case(Caf(f=F), GEOMETRY, "caf", FASTER, same=False),
    "cge": Case(Cge(f=F), GEOMETRY),
    "monna": Case(Monna(f=F), GEOMETRY, "monna", same=False),
    "aksel": Case(Aksel(f=F), GEOMETRY),
    "geometric_median": Case(GeometricMedian(smoothing=0.1, iterations=3, tolerance=0.0), GEOMETRY, "geometric_median"),
    "centered_clipping": Case(CenteredClipping(), GEOMETRY, "centered_clipping"),
    "norm_clipping": Case(NormClipping(radius=2.0), GEOMETRY, "clipping,average"),
    "fltrust": Case(Fltrust(), GEOMETRY),
    "dnc": Case(Dnc(f=F), GEOMETRY),
    "nnm, mean": Case(Average(before=(Nnm(f=F),)), ROWS, "nnm,average", FASTER, small=True),
    "nnm, krum": Case(Krum(f=F, before=(Nnm(),)), ROWS),
    "nnm, trimmed_mean": Case(TrimmedMean(f=F, before=(Nnm(),)), ROWS, "nnm,trimmed_mean", FASTER, small=True),
    "arc, nnm, geometric_median": Case(GeometricMedian(before=(Arc(f=F), Nnm(f=F))), ROWS),
    "arc, trimmed_mean": Case(TrimmedMean(f=F, before=(Arc(),)), ROWS, "arc,trimmed_mean"),
    "clipping, trimmed_mean": Case(TrimmedMean(f=F, before=(Clipping(radius=2.0),)), ROWS, "clipping,trimmed_mean"),
    "bucketing, median": Case(Median(before=(Bucketing(f=F),)), ROWS, "bucketing,median", same=False),
}
"""`loss_score` is left out: its time is that of evaluating the model n + 1 times."""


@dataclass(frozen=True)
class Times:
    """What was measured.

    Attributes:
        ours: the seconds of each case, and of a read pass as `read`.
        beside: those of each case that ByzFL has, in turn with ByzFL.
    """

    ours: dict[str, list[float]]
    beside: dict[str, Beside]

    def middle(self, name: str) -> float:
        """Return the median of ours."""
        return statistics.median(self.ours[name])


def measure(
    values: Any, updates: Updates, read: Callable[[], Any], repeats: int, byzfl: ByzFL | None, result: Any
) -> tuple[Times, str]:
    """Measure all cases in turn with all threads, as a combiner calls them; then each beside ByzFL.

    Args:
        values: the shared memory with the updates.
        updates: the updates, one after another from its start.
        read: one pass over them.
        repeats: how many times to measure both; one more is not counted.
        byzfl: ByzFL's process, if it is measured.
        result: the shared memory where it writes results.

    Returns:
        The seconds; and what went wrong with ByzFL, empty if nothing did.
    """
    times = Times({}, {})
    d = updates.layout.size
    out = np.zeros(d, np.float32)
    states = {name: Arrays() for name in CASES}
    problem = ""
    for repeat in range(repeats + 1):
        seconds = {"read": _timed(read)}
        for name, case in CASES.items():
            seconds[name] = _timed(lambda case=case, state=states[name]: _combined(case.rule, updates, out, state))  # type: ignore[misc]
        if repeat:
            for name, took in seconds.items():
                times.ours.setdefault(name, []).append(took)
    part = d // SMALLER
    smaller = Updates.of(values[: N * part].reshape(N, part), updates.layout.restrict(0, part))
    for name, case in CASES.items():
        if byzfl is None or not case.byzfl:
            continue
        rows = smaller if case.small else updates
        target = out[: rows.layout.size]

        def ours(case: Case = case, rows: Updates = rows, target: Any = target) -> float:
            return _timed(lambda: _combined(case.rule, rows, target, Arrays()))  # the first round, as ByzFL's

        try:
            times.beside[name] = byzfl.beside(case.byzfl, rows, ours, repeats, F)
        except MeasurementError as error:
            problem, byzfl = f"{error}, at {name}", None
            continue
        if case.same and not _same(case, values, updates, byzfl, times.beside[name].form, result):
            problem = f"{problem}; " * bool(problem) + f"its {case.byzfl} gives another result"
    return times, problem


def _same(case: Case, values: Any, updates: Updates, byzfl: ByzFL, form: Form, result: Any) -> bool:
    """Return whether both have the same result on `COMPARED` coordinates.

    With many more, the distances of these updates are so alike that rounding decides which is smaller: then ByzFL's
    results for numpy arrays and for torch tensors differ, too.
    """
    few = Updates.of(values[: N * COMPARED].reshape(N, COMPARED), updates.layout.restrict(0, COMPARED))
    byzfl.seconds(case.byzfl, few, form, F)
    out = np.zeros(COMPARED, np.float32)
    _combined(case.rule, few, out, Arrays())
    return np.allclose(result[:COMPARED], out, rtol=1e-4, atol=1e-5)


def lines(times: Times) -> list[str]:
    """Return the table."""
    read = times.middle("read")
    found = [
        "",
        f"## All rules, n = {N}, f = {F}, {THREADS} threads",
        "",
        "As a combiner calls them: with the search for values that are not finite. Pre-aggregators are named before "
        f"their rule. One read pass takes {read:.3f} s. Beside ByzFL, hpcps and ByzFL run in turn: seconds are medians "
        "of as many runs, after runs that are not counted; both may use all cores; ByzFL gets numpy arrays or torch "
        f"tensors, whichever is faster. ¹: both with a {SMALLER}th of the coordinates, because ByzFL would need 20 GB "
        "for 16 x 25 M.",
        "",
        "| Rule | Read passes | Wanted | Seconds | Beside ByzFL: hpcps | ByzFL | gets | ByzFL over hpcps |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name, case in CASES.items():
        took, cells = times.middle(name), "– | – | – | –"
        if name in times.beside:
            one = times.beside[name]
            ours, theirs = (f"{statistics.median(those):.3g}{'¹' * case.small}" for those in (one.ours, one.theirs))
            cells = f"{ours} | {theirs} | {one.form} | {one.ratio:.3g}"
        found.append(f"| {name} | {took / read:.2f} | ≤ {case.limit:g} | {took:.3f} | {cells} |")
    return found


def bars(times: Times) -> list[Bar]:
    """Return the targets and what was measured."""
    read, found = times.middle("read"), []
    for name, case in CASES.items():
        ratio = times.middle(name) / read
        found.append(Bar.at_most(f"{name}, n = {N}, as combined: time over a read pass", ratio, case.limit))
        if name in times.beside:
            faster = times.beside[name].ratio
            found.append(Bar.at_least(f"{name}, n = {N}, as combined: times ByzFL's speed", faster, case.faster))
    return found


def _combined(rule: Rule, updates: Updates, out: Any, state: Arrays) -> None:
    context = Context(updates.payloads[0], None, np.random.default_rng(1), state)
    combine_finite(rule, updates.onto(Destination(out=out, threads=THREADS)), context)


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
