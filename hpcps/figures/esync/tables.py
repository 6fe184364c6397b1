"""The table of methods as Markdown: final accuracy, throughput, traffic, computing time."""

from __future__ import annotations

import numpy as np

from hpcps.figures.curve import Curve, Range
from hpcps.figures.esync.comparison import Comparison
from hpcps.figures.esync.methods import STANDALONE
from hpcps.figures.esync.rates import Rates
from hpcps.figures.final import aligned_table, plain
from hpcps.records.inventory import enumerated

_MB = 1e6
_HEAD = ("method", "accuracy (%)", "seconds", "samples/s", "MB/s", "computing (%)")


def comparison_table(shown: Comparison) -> str:
    """Return a Markdown table for each panel, below a description of the runs."""
    data = shown.figure_data
    parts = ["  \n".join(filter(None, [f"**{data.experiment}**: methods", data.facts, data.remark]))]
    for panel, curves in data.panels.items():
        rates = {one.line: one for one in shown.rates.get(panel, ())}
        rows = [list(_HEAD), *(_row(curve, rates.get(curve.line)) for curve in curves)]
        table = aligned_table(rows) if curves else "no result yet"
        parts.append((f"{plain(panel)}\n\n" if panel else "") + table)
    notes = ["computing: of the worker that computes least and of the one that computes most"]
    if any(curve.seeds > 1 for curve in data.curves):
        notes.append("[lowest–highest of the seeds]")
    if any(curve.diverged_seeds for curve in data.curves):
        notes.append("† diverged (k of n seeds, which the mean includes)")
    if not all(curve.finished for curve in data.curves):
        notes.append("*: not finished")
    if data.lost:
        notes.append(f"no result yet: {enumerated([label for label, *_ in data.lost], 12)}")
    return "\n\n".join([*parts, "; ".join(notes)]) + "\n"


def _row(curve: Curve, rates: Rates | None) -> list[str]:
    accuracy = _number(curve.accuracy, "{:.1f}") if curve.epoch.size else "–"
    if curve.diverged_seeds:
        accuracy += f" † {curve.diverged_seeds} of {curve.seeds}"
    accuracy += "" if curve.finished else "*"
    seconds = f"{curve.wall[-1]:,.4g}" if curve.wall.size and curve.line != STANDALONE else "–"
    if rates is None:
        return [curve.line, accuracy, seconds, "–", "–", "–"]
    shares = rates.computing.mean
    traffic = Range.of(rates.traffic.seeds / _MB)
    computing = f"{np.nanmin(shares):.1f} to {np.nanmax(shares):.1f}"
    return [curve.line, accuracy, seconds, _number(rates.throughput, "{:,.4g}"), _number(traffic, "{:.3g}"), computing]


def _number(values: Range, form: str) -> str:
    """Return the last mean and its range over the seeds."""
    mean, low, high = (form.format(part[-1]) for part in (values.mean, values.low, values.high))
    if np.isnan(values.mean[-1]):
        return "–"
    return f"{mean} [{low}–{high}]" if low != high else mean
