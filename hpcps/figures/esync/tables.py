"""The table of methods as Markdown: accuracy at the end, at equal samples and at equal time, and the rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcps.figures.curve import Curve, Range, Values
from hpcps.figures.esync.comparison import Comparison
from hpcps.figures.esync.methods import STANDALONE
from hpcps.figures.esync.rates import Rates
from hpcps.figures.final import aligned_table, plain
from hpcps.records.inventory import enumerated

_MB = 1e6
_ALIKE = 1e-3
"""The share by which samples or seconds may differ that count as equal: messages end at slightly different times."""
_HEAD = ("method", "accuracy (%)", "seconds", "samples/s", "MB/s", "computing (%)", "step ratio")


def comparison_table(shown: Comparison) -> str:
    """Return a Markdown table for each panel, below a description of the runs."""
    data = shown.figure_data
    parts = ["  \n".join(filter(None, [f"**{data.experiment}**: methods", data.facts, data.remark]))]
    for panel, curves in data.panels.items():
        rates = {one.line: one for one in shown.rates.get(panel, ())}
        equal = _Equal.of(curves, rates)
        head = [*_HEAD[:2], *equal.heads, *_HEAD[2:]]
        rows = [head, *(_row(curve, rates.get(curve.line), equal) for curve in curves)]
        table = aligned_table(rows) if curves else "no result yet"
        parts.append((f"{plain(panel)}\n\n" if panel else "") + table)
    notes = [
        "accuracy: at the end, and at the last evaluation within the fewest samples or seconds of any method",
        "computing: of the worker that computes least and of the one that computes most",
        "step ratio: the mean local step of the slowest worker divided by that of the fastest, as measured",
    ]
    if any(curve.seeds > 1 for curve in data.curves):
        notes.append("[lowest–highest of the seeds]")
    if any(curve.diverged_seeds for curve in data.curves):
        notes.append("† diverged (k of n seeds, which the mean includes)")
    if not all(curve.finished for curve in data.curves):
        notes.append("*: not finished")
    if data.lost:
        notes.append(f"no result yet: {enumerated([label for label, *_ in data.lost], 12)}")
    return "\n\n".join([*parts, "; ".join(notes)]) + "\n"


@dataclass(frozen=True)
class _Equal:
    """The samples and the seconds that all methods of a panel have reached."""

    samples: float
    seconds: float

    @classmethod
    def of(cls, curves: Sequence[Curve], rates: Mapping[str, Rates]) -> _Equal:
        """Return those of the methods with workers."""
        trained = [curve for curve in curves if curve.line in rates and curve.wall.size]
        return cls(
            min((rates[curve.line].samples for curve in trained), default=np.nan),
            min((float(curve.wall[-1]) for curve in trained), default=np.nan),
        )

    @property
    def heads(self) -> tuple[str, str]:
        """The heads of the columns of accuracies."""
        return f"at {self.samples:,.0f} samples (%)", f"at {self.seconds:,.4g} s (%)"

    def accuracies(self, curve: Curve, rates: Rates) -> list[str]:
        """Return the accuracy at these samples, and at these seconds."""
        samples = curve.epoch / curve.epoch[-1] * rates.samples  # a method processes samples at a constant rate
        return [self._at(curve, samples, self.samples), self._at(curve, curve.wall, self.seconds)]

    def _at(self, curve: Curve, reached: Values, limit: float) -> str:
        within = np.flatnonzero(reached <= limit * (1 + _ALIKE))
        return _number(Range.of(curve.accuracy.seeds[:, : within[-1] + 1]), "{:.1f}") if within.size else "–"


def _row(curve: Curve, rates: Rates | None, equal: _Equal) -> list[str]:
    accuracy = _number(curve.accuracy, "{:.1f}") if curve.epoch.size else "–"
    if curve.diverged_seeds:
        accuracy += f" † {curve.diverged_seeds} of {curve.seeds}"
    accuracy += "" if curve.finished else "*"
    seconds = f"{curve.wall[-1]:,.4g}" if curve.wall.size and curve.line != STANDALONE else "–"
    if rates is None or not curve.epoch.size:
        return [curve.line, accuracy, "–", "–", seconds, "–", "–", "–", "–"]
    shares = rates.computing.mean
    traffic = Range.of(rates.traffic.seeds / _MB)
    computing = f"{np.nanmin(shares):.1f} to {np.nanmax(shares):.1f}"
    throughput, sent = _number(rates.throughput, "{:,.4g}"), _number(traffic, "{:.3g}")
    ratio = _number(rates.step_ratio, "{:.3g}")
    return [curve.line, accuracy, *equal.accuracies(curve, rates), seconds, throughput, sent, computing, ratio]


def _number(values: Range, form: str) -> str:
    """Return the last mean and its range over the seeds."""
    mean, low, high = (form.format(part[-1]) for part in (values.mean, values.low, values.high))
    if np.isnan(values.mean[-1]):
        return "–"
    return f"{mean} [{low}–{high}]" if low != high else mean
