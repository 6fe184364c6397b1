"""The data of an experiment's figures: their panels and lines, and the curves in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.applied import AppliedUpdates, applied
from hpcps.figures.curve import Curve, Values, curve
from hpcps.records.esync_logs.table import IMPORTED

REDUCED_BY = {
    "model.name": "model",
    "data": "data",
    "topology": "processes",
    "train.epochs": "epochs",
    "train.local_steps": "local steps",
    "heterogeneity": "heterogeneity",
}
"""Keys or tables, and their names; a run in which one of them differs from the experiment file is a reduced run."""

TIED = "\N{NO-BREAK SPACE}"

BASELINE = "SGD"
"""The line of the baseline, plain SGD."""

ONE_AT_A_TIME = "one key at a time"
"""The line key of figures in which each panel compares one point with the base."""

_SAME = ("model", "data", "data_limit", "epochs")
"""Columns that must be equal for a run to be a line in the figure of another run."""


_SIMULATED = "simulated time"


@dataclass(frozen=True)
class ComparedCurve:
    """A curve of others: the line and panel that it belongs to, epochs, and accuracies in percent, both `[epochs]`."""

    source: str
    panel: str
    line: str
    epoch: Values
    accuracy: Values


@dataclass(frozen=True)
class FigureData:
    """The curves of one variant of an experiment.

    Attributes:
        line_key: the swept column whose values are the lines; empty if nothing is swept.
        panel_keys: the swept columns whose values are the panels.
        lines: the names of the lines, in the order of the sweep.
        panels: curves by panel, in the order of the sweep.
        variant: the differences of the runs from their file; empty if there are none.
        facts: a description of the runs.
        references: lines of every panel: points outside the sweep's product, and the baseline.
        applied: the applied updates of each line, by panel; empty in a synchronous experiment.
        lost: the labels of the sweep's points without a result, each with its panel and line; for points outside the
            sweep's product these are empty.
        all_lines: the lines of the whole sweep, if `lines` is a selection of them.
        elsewhere: the panels that other variants of the experiment have; empty if there is no other variant.
        compared: curves of others.
    """

    experiment: str
    line_key: str
    panel_keys: tuple[str, ...]
    lines: tuple[str, ...]
    panels: dict[str, tuple[Curve, ...]]
    variant: str
    facts: str
    references: tuple[Curve, ...] = ()
    applied: dict[str, tuple[AppliedUpdates, ...]] = field(default_factory=dict)
    lost: tuple[tuple[str, str, str], ...] = ()
    all_lines: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    compared: tuple[ComparedCurve, ...] = ()

    def seeds_lost(self, panel: str, line: str) -> int:
        """Return the number of seeds without a result, for a line in a panel."""
        return sum((panel, line) == (of_panel, of_line) for _, of_panel, of_line in self.lost)

    @property
    def simulated(self) -> bool:
        """Whether the times are simulated."""
        return _SIMULATED in self.facts

    @property
    def palette(self) -> tuple[str, ...]:
        """The lines that have a style: a line keeps its style if it is drawn without others."""
        return self.all_lines or self.lines

    @property
    def remark(self) -> str:
        """The differences of the runs from their file: `"reduced: data.limit=5000"`; empty if there are none.

        Beside other variants, runs without differences are `"full length"`.
        """
        if not self.variant:
            return "full length" if self.elsewhere else ""
        return f"{'reduced' if self._reduced else 'changed'}: {self.variant}"

    @property
    def not_reduced(self) -> str:
        """The parts of reduced runs that are as in the file: `"as in the file: model, data"`; empty for other runs."""
        kept = [words for name, words in REDUCED_BY.items() if name not in self._reduced]
        return f"as in the file: {', '.join(kept)}" if self._reduced and kept else ""

    @property
    def _reduced(self) -> set[str]:
        """The entries of `REDUCED_BY` that the variant changes."""
        keys = [item.partition("=")[0] for item in self.variant.split(" ")]
        return {name for name in REDUCED_BY for key in keys if key == name or key.startswith(f"{name}.")}

    @property
    def line_title(self) -> str:
        """The title of the legend, such as `rho`; empty if the names of the lines explain themselves."""
        speaking = ("rule", "attack", "outside", ONE_AT_A_TIME)
        return "" if self.line_key in speaking else self.line_key.rpartition(".")[2]

    @property
    def curves(self) -> tuple[Curve, ...]:
        """All curves."""
        return tuple(curve for panel in self.panels.values() for curve in panel) + self.references

    @property
    def scored(self) -> tuple[str, ...]:
        """The lines with an acceptance rate, in the order of the sweep."""
        having = {curve.line for curve in self.curves if curve.acceptance}
        return tuple(line for line in self.lines if line in having)


def require_epochs(frame: pd.DataFrame) -> None:
    """Raise an error if a table is of the logs of another system, which do not count epochs.

    Raises:
        RunError: it is.
    """
    if "epoch" not in frame and (frame["event"] == "evaluation").any():
        name = frame.attrs.get("experiment")
        raise RunError(f"the logs of {name} do not count epochs: `hpcps plot esync {name}` draws what they have")


def figure_data_of(
    frame: pd.DataFrame, baseline: pd.DataFrame | None = None, *, merge_tied: bool = True
) -> list[FigureData]:
    """Convert the table of `hpcps collect` to figure data for each variant, in order of appearance.

    A line is one rule, and a panel is one combination of the other swept keys. Without a swept rule, the first swept
    key except the attack gives the lines. A key that varies only together with the lines makes no panels. Seeds are
    averaged. A point outside the sweep's product is a separate line in
    every panel. If the product is a single point, each point outside of it has a panel that compares it with that
    point.

    Args:
        frame: the table.
        baseline: the table of a further experiment, shown for reference in figures of the same model, data and length.
        merge_tied: whether a key that varies only together with the lines makes no panels. If not, it makes panels as
            others do.

    Raises:
        RunError: the table has no evaluations.
    """
    if not (frame["event"] == "evaluation").any():
        if frame.attrs.get(IMPORTED):
            raise RunError(f"the logs of {frame.attrs.get('experiment')} have no accuracy, which `hpcps plot` needs")
        raise RunError("no evaluation in this table yet: wait for the first epoch to end, then collect again")
    require_epochs(frame)
    rows = frame[frame["event"].isin(["evaluation", "updates"])]
    swept = [key for key in frame.attrs.get("swept", []) if key != "seed"]
    away = rows["outside"].astype(str) if "outside" in rows else pd.Series("", rows.index)
    lost = pd.DataFrame(frame.attrs.get("missing", []), dtype=object)
    lost_of = dict(_groups(lost, ("variant",)))
    if (away != "").all():
        return [
            _figure_data(part, "outside", (), variant, lost_of.get(variant))
            for variant, part in _groups(rows, ("variant",))
        ]
    inside, others = rows[away == ""], rows[away != ""]
    others = others[others["event"] == "evaluation"] if swept else others
    candidates = [key for key in swept if key == "rule"] + [key for key in swept if key != "attack"] + swept
    line_key = candidates[0] if candidates else ""
    panel_keys = tuple(
        key for key in swept if key != line_key and not (merge_tied and _tied(key, line_key, inside, lost))
    )
    result = []
    for variant, part in _groups(inside, ("variant",)):
        near = _near(others, part, variant)
        if near and not swept:
            changed = frame.attrs.get("outside", {})
            result.append(_one_at_a_time(part, near, variant, changed, lost_of.get(variant)))
            continue
        references = [curve(name, found) for name, found in near.items()]
        if baseline is not None:
            evaluations = baseline[baseline["event"] == "evaluation"]
            same = evaluations[_like(evaluations, part, (*_SAME, "workers"))]
            references += [curve(BASELINE, same)] if len(same) else []
        figure_data = _figure_data(part, line_key, panel_keys, variant, lost_of.get(variant))
        result.append(replace(figure_data, references=tuple(references)))
    return [replace(one, elsewhere=_elsewhere(result, one)) for one in result]


def _elsewhere(shown: list[FigureData], one: FigureData) -> tuple[str, ...]:
    """Return the panels that have curves in other figure data than this one."""
    found = (name for other in shown if other is not one for name, curves in other.panels.items() if curves)
    return tuple(dict.fromkeys(found))


def text(value: Any) -> str:
    """Return a swept value as text."""
    if isinstance(value, float):
        return "none" if np.isnan(value) else f"{value:g}"
    return "none" if value is None else str(value)


def _figure_data(
    rows: pd.DataFrame, line_key: str, panel_keys: tuple[str, ...], variant: str, lost: pd.DataFrame | None
) -> FigureData:
    evaluations, updates = rows[rows["event"] == "evaluation"], rows[rows["event"] == "updates"]
    line_keys = (line_key,) if line_key else ()

    def by_line(part: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
        return list(_groups(part, line_keys))

    def in_order(keys: tuple[str, ...]) -> list[str]:
        """Return the values of some columns, including those of points without a result."""
        places = dict(zip(_words(evaluations, keys)[::-1], _points(evaluations)[::-1], strict=True))
        for word, point in zip(_words(inside, keys), _points(inside), strict=True):
            places[word] = min(point, places.get(word, point))
        return sorted(dict.fromkeys([*_words(evaluations, keys), *_words(inside, keys)]), key=places.__getitem__)

    lost = pd.DataFrame(columns=["label", "outside"]) if lost is None else lost
    inside = lost[lost["outside"] == ""] if line_key != "outside" else lost
    found = {
        panel: tuple(curve(line, runs) for line, runs in by_line(part))
        for panel, part in _groups(evaluations, panel_keys)
    }
    places = zip(inside["label"], _words(inside, panel_keys), _words(inside, line_keys), strict=True)
    beyond = [(label, "", "") for label in lost["label"][~lost.index.isin(inside.index)]]
    return FigureData(
        experiment=text(rows["experiment"].iloc[0]),
        line_key=line_key,
        panel_keys=panel_keys,
        lines=tuple(in_order(line_keys)),
        panels={panel: found.get(panel, ()) for panel in in_order(panel_keys)},
        variant=variant,
        facts=describe(evaluations, lost),
        applied={
            panel: tuple(applied(line, runs) for line, runs in by_line(part))
            for panel, part in _groups(updates, panel_keys)
        },
        lost=(*places, *beyond),
    )


def _one_at_a_time(
    base: pd.DataFrame,
    changed: Mapping[str, pd.DataFrame],
    variant: str,
    keys: Mapping[str, list[str]],
    lost: pd.DataFrame | None,
) -> FigureData:
    """Return figure data with a panel per point outside of a product with one point: that point and this one."""
    panels, counts = {}, {}
    for name, rows in changed.items():
        title = "\n".join(_change(key, base, rows) for key in keys.get(name, [])) or name
        parts = {"base": base, "changed": rows}
        panels[title] = tuple(curve(line, part[part["event"] == "evaluation"]) for line, part in parts.items())
        updates = {line: part[part["event"] == "updates"] for line, part in parts.items()}
        if all(len(part) for part in updates.values()):
            counts[title] = tuple(applied(line, part) for line, part in updates.items())
    plain = _figure_data(base, "", (), variant, lost)
    return replace(plain, line_key=ONE_AT_A_TIME, lines=("base", "changed"), panels=panels, applied=counts)


def _change(key: str, base: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Describe the change of a key: `"absent: accumulate → reset"`."""
    was, now = (text(part[key].astype(object).iloc[0]) for part in (base, rows))
    return f"{key.partition('.')[2] or key}: {was}{TIED}→{TIED}{now}"


def _near(others: pd.DataFrame, rows: pd.DataFrame, variant: str) -> dict[str, pd.DataFrame]:
    """Return the points outside the product that can be drawn with some rows of the product, by name."""
    found = {}
    for name, part in _groups(others, ("outside",)) if len(others) else ():
        variants = dict(_groups(part, ("variant",)))
        alike = [inside for inside in variants.values() if _like(inside, rows, _SAME).all()]
        chosen = variants.get(variant, alike[0] if alike else None)
        if chosen is not None and (chosen["event"] == "evaluation").any():
            found[name] = chosen
    return found


def _like(rows: pd.DataFrame, others: pd.DataFrame, columns: tuple[str, ...]) -> pd.Series:
    """Tell which rows equal the first of the others in some columns; ignore missing columns."""
    alike = pd.Series(True, rows.index)
    for name in columns:
        if name in rows and name in others:
            wanted = text(others[name].astype(object).iloc[0])
            alike &= rows[name].astype(object).map(text) == wanted
    return alike


def _groups(rows: pd.DataFrame, keys: tuple[str, ...]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Split rows by the values of some columns, in order of appearance; yield the values as text with each part."""
    words = np.array(_words(rows, keys), dtype=object)
    for word in dict.fromkeys(words):
        yield word, rows[words == word]


def _tied(key: str, line_key: str, *tables: pd.DataFrame) -> bool:
    """Tell whether a key has several values, but only one in each line."""
    pairs = {pair for rows in tables for pair in zip(_words(rows, (key,)), _words(rows, (line_key,)), strict=True)}
    values, lines = ({pair[place] for pair in pairs} for place in (0, 1))
    return len(values) > 1 and len(pairs) == len(lines)


def _words(rows: pd.DataFrame, keys: tuple[str, ...]) -> list[str]:
    """Return the values of some columns as text, for each row."""
    columns = [[text(value) for value in rows[key].astype(object)] for key in keys if len(rows)]
    return [" · ".join(row) for row in zip(*columns, strict=True)] if columns else [""] * len(rows)


def _points(rows: pd.DataFrame) -> list[int]:
    """Return the position of each row's run in the sweep; 0 in a table of a version without that column."""
    return [int(point) for point in rows["point"]] if "point" in rows else [0] * len(rows)


def describe(rows: pd.DataFrame, lost: pd.DataFrame, epochs: str = "") -> str:
    """Describe the runs: data, processes, epochs, preset, seeds, and diverged, stalled and missing runs.

    Args:
        rows: their evaluations.
        lost: those without a result.
        epochs: describes the epochs, if the numbers alone do not.
    """

    def values(column: str) -> list[Any]:
        return list(dict.fromkeys(rows[column].astype(object)))

    def counted(column: str) -> str:
        numbers = values(column)
        noun = column[:-1] if numbers == [1] else column
        return f"{'/'.join(text(number) for number in numbers)} {noun}"

    seeds = list(dict.fromkeys([*values("seed"), *lost.get("seed", ())]))
    reached = rows[rows["status"] != "done"].groupby("run_id", observed=True)["epoch"].max()
    unfinished = len(reached) + len(lost)
    runs = rows["run_id"].nunique()
    whole, lengths = text(rows.attrs.get("epochs_of_file")), [text(number) for number in values("epochs")]
    facts = [
        *("/".join(text(name) for name in values(column)) for column in ("model", "data") if column in rows),
        ", ".join(counted(column) for column in ("workers", "validators", "servers")),
        epochs or (counted("epochs") if whole in ("none", *lengths) else f"{'/'.join(lengths)} of {whole} epochs"),
        f"fidelity {'/'.join(text(name) for name in values('fidelity'))}",
        f"seed {text(seeds[0])}" if len(seeds) == 1 else f"{len(seeds)} seeds",
    ]
    if "simulation" in rows and any(text(kind) != "none" for kind in values("simulation")):
        facts.append(_SIMULATED)
    last = rows.sort_values("epoch").groupby("run_id", observed=True).tail(1)
    for what in ("diverged", "stalled"):
        count = int((last[what] > 0).sum()) if what in last else 0
        if count and len(seeds) > 1:
            facts.append(f"{count} of {runs} runs {what}")
    if unfinished:
        span = "/".join(dict.fromkeys(text(epoch) for epoch in (reached.min(), reached.max()))) if len(reached) else ""
        where = [f"{len(reached)} at epoch {span.replace('/', ' to ')}"] if span else []
        where += [f"{len(lost)} without a result"] if len(lost) else []
        facts.append(f"{unfinished} of {runs + len(lost)} runs unfinished ({', '.join(where)})")
    return " · ".join(facts)
