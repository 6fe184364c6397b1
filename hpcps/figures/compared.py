"""Curves of others, such as another simulator's, beside those of an experiment, and how far apart they are."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.errors import InputError, RunError
from hpcps.figures.curve import Curve, Values
from hpcps.figures.figure_data import ComparedCurve, FigureData
from hpcps.figures.final import aligned_table, heading, plain
from hpcps.figures.options import choose, refuse_unknown
from hpcps.inputs import MiB, parse_json, read_text

WINDOWS = ((5, 9), (10, 14), (15, 19))
"""Epochs over which the table takes means, first and last; a single epoch varies too much to be compared."""

_FIELDS = ("rule", "attack", "epoch", "accuracy")
_LARGEST_FILE = 64 * MiB


@dataclass(frozen=True)
class GivenCurve:
    """A curve of a file: the words for its line and panel, epochs, and accuracies in percent, both `[epochs]`.

    It is of all variants of an experiment whose differences from the file contain `variant`.
    """

    source: str
    rule: str
    attack: str
    variant: str
    epoch: Values
    accuracy: Values


def read_curves(path: Path) -> list[GivenCurve]:
    """Read curves from CSV (`*.csv`, with a head) or from JSON lines.

    A row has `rule`, `attack`, `epoch` and `accuracy` (0 to 1). It may have `source`, the name in the legend, which by
    default is that of the file, and `variant`, a part of the differences of the runs to compare with from their file,
    such as `train.epochs=40`.

    Raises:
        RunError: the file cannot be read, or a row lacks a field or has a wrong one.
    """
    try:
        text = read_text(path, _LARGEST_FILE)
    except InputError as error:
        raise RunError(str(error)) from error
    found: dict[tuple[str, str, str, str], dict[float, float]] = {}
    for number, row in _rows(path, text):
        if lacking := [name for name in _FIELDS if row.get(name) in (None, "")]:
            raise RunError(f"{path}:{number}: no {', '.join(lacking)}; a row has {', '.join(_FIELDS)}")
        epoch, accuracy = (_number(path, number, row, name) for name in ("epoch", "accuracy"))
        if not 0 <= accuracy <= 1:
            raise RunError(f"{path}:{number}: accuracy {accuracy:g}; expects a fraction from 0 to 1")
        source, variant = row.get("source") or path.stem.replace("_", " "), row.get("variant") or ""
        key = str(source), str(row["rule"]), str(row["attack"]), str(variant)
        curve = found.setdefault(key, {})
        if epoch in curve:
            what = f"epoch {epoch:g} of {key[1]} · {key[2]} is there twice"
            raise RunError(f"{path}:{number}: {what}; give each curve a source of its own")
        curve[epoch] = 100 * accuracy
    if not found:
        raise RunError(f"{path}: it has no rows; a row has {', '.join(_FIELDS)}")
    return [
        GivenCurve(*key, np.array(sorted(values)), np.array([values[epoch] for epoch in sorted(values)]))
        for key, values in found.items()
    ]


def compare(shown: Sequence[FigureData], given: Iterable[GivenCurve]) -> list[FigureData]:
    """Return the figure data with the curves that belong to their lines and panels.

    Raises:
        RunError: no variant has the line or panel of a curve, or there is no such variant; the message lists those that
            there are.
    """
    given = list(given)
    variants = [figure_data.variant for figure_data in shown]
    for wanted in dict.fromkeys(one.variant for one in given):
        if not any(wanted in variant for variant in variants):
            known = "; ".join(variant or "no differences" for variant in variants)
            raise RunError(f"no runs differ from their file by {wanted!r}; there are: {known}")
    lines = dict.fromkeys(line for figure_data in shown for line in figure_data.lines)
    panels = dict.fromkeys(panel for figure_data in shown for panel in figure_data.panels)
    rules, attacks = ([*dict.fromkeys(getattr(one, name) for one in given)] for name in ("rule", "attack"))
    refuse_unknown({"line": (rules, lines), "panel": (attacks, panels)})
    return [
        replace(
            figure_data,
            compared=tuple(
                ComparedCurve(one.source, panel, line, one.epoch, one.accuracy)
                for one in given
                if one.variant in figure_data.variant
                for panel in choose([*figure_data.panels], [one.attack])
                for line in choose(figure_data.lines, [one.rule])
            ),
        )
        for figure_data in shown
    ]


def differences(figure_data: FigureData) -> list[tuple[str, str, str, list[tuple[float, float] | None]]]:
    """Return for each compared curve its source, line and panel, and in each of `WINDOWS` our mean and its mean.

    A window in which either curve lacks an epoch that the other one may have has no means.
    """
    found = []
    for other in figure_data.compared:
        ours = next((curve for curve in figure_data.panels[other.panel] if curve.line == other.line), None)
        means = [_means(ours, other, *window) for window in WINDOWS]
        found.append((other.source, other.line, other.panel, means))
    return found


def difference_table(shown: Sequence[FigureData]) -> str:
    """Return `differences` as a Markdown table for each variant; empty if nothing is compared."""
    parts = []
    for figure_data in shown:
        if not figure_data.compared:
            continue
        windows = [f"epochs {first} to {last}" for first, last in WINDOWS]
        rows = [["line", "panel", "compared with", *windows]]
        for source, line, panel, means in differences(figure_data):
            cells = [
                "–" if pair is None else f"{pair[0]:.1f} − {pair[1]:.1f} = {pair[0] - pair[1]:+.1f}".replace("-", "−")
                for pair in means
            ]
            rows.append([line, plain(panel), source, *cells])
        title = heading(figure_data, "mean test accuracy (%), ours − theirs", figure_data.remark)
        parts.append(f"{title}\n\n{aligned_table(rows)}\n")
    return "\n".join(parts)


def _means(ours: Curve | None, other: ComparedCurve, first: int, last: int) -> tuple[float, float] | None:
    if ours is None:
        return None
    wanted = range(first, last + 1)
    values = []
    for epochs, accuracy in ((ours.epoch, ours.accuracy.mean), (other.epoch, other.accuracy)):
        by_epoch = dict(zip(epochs.tolist(), accuracy.tolist(), strict=True))
        if not all(epoch in by_epoch for epoch in wanted):
            return None
        values.append(sum(by_epoch[epoch] for epoch in wanted) / len(wanted))
    return values[0], values[1]


def _rows(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Yield the rows of a file with their line numbers."""
    if path.suffix.lower() == ".csv":
        reader = csv.DictReader(text.splitlines())
        try:
            for row in reader:
                if None in row:
                    raise RunError(f"{path}:{reader.line_num}: more cells than the head has; decimals have a point")
                yield reader.line_num, row
        except csv.Error as error:
            raise RunError(f"{path}:{reader.line_num + 1}: {error}") from error
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(f"{path}:{number}", line)
        except InputError as error:
            raise RunError(str(error)) from error
        if not isinstance(row, dict):
            raise RunError(f"{path}:{number}: expects a JSON object with {', '.join(_FIELDS)}")
        yield number, row


def _number(path: Path, number: int, row: Mapping[str, Any], name: str) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if not np.isfinite(value):
        raise RunError(f"{path}:{number}: {name} {row[name]!r}; expects a number")
    return value
