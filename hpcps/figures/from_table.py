"""Converts the table of `hpcps collect` to figure data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.curve import ClassAccuracy, applied, class_accuracies, curve
from hpcps.figures.figure_data import BASELINE, ONE_AT_A_TIME, TIED, FigureData, describe, require_epochs, text
from hpcps.records.export import has_accuracy, no_accuracy
from hpcps.records.imported_logs import imported_system

_SAME = ("model", "data", "data_limit", "epochs")
"""Columns that must be equal for a run to be a line in the figure of another run."""


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
    if not has_accuracy(frame):
        if imported_system(frame):
            raise RunError(f"the logs of {frame.attrs.get('experiment')} have no accuracy, which `hpcps plot` needs")
        raise no_accuracy(frame)
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
        key
        for key in swept
        if key != line_key
        and not (merge_tied and _tied(key, line_key, inside, lost))
        and not _stated(key, swept, inside, lost)
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
        classes=_with_classes({panel: by_line(part) for panel, part in _groups(evaluations, panel_keys)}),
        lost=(*places, *beyond),
    )


def _with_classes(panels: Mapping[str, list[tuple[str, pd.DataFrame]]]) -> dict[str, tuple[ClassAccuracy, ...]]:
    """Return the accuracy of each class, of the evaluations of each line of each panel, where a line has them."""
    found = {
        panel: tuple(one for line, rows in parts if (one := class_accuracies(line, rows)) is not None)
        for panel, parts in panels.items()
    }
    return {panel: lines for panel, lines in found.items() if lines}


def _one_at_a_time(
    base: pd.DataFrame,
    changed: Mapping[str, pd.DataFrame],
    variant: str,
    keys: Mapping[str, list[str]],
    lost: pd.DataFrame | None,
) -> FigureData:
    """Return figure data with a panel per point outside of a product with one point: that point and this one."""
    panels, counts, evaluated = {}, {}, {}
    for name, rows in changed.items():
        title = "\n".join(_change(key, base, rows) for key in keys.get(name, [])) or name
        parts = {"base": base, "changed": rows}
        evaluated[title] = [(line, part[part["event"] == "evaluation"]) for line, part in parts.items()]
        panels[title] = tuple(curve(line, part) for line, part in evaluated[title])
        updates = {line: part[part["event"] == "updates"] for line, part in parts.items()}
        if all(len(part) for part in updates.values()):
            counts[title] = tuple(applied(line, part) for line, part in updates.items())
    plain = _figure_data(base, "", (), variant, lost)
    classes, lines = _with_classes(evaluated), ("base", "changed")
    return replace(plain, line_key=ONE_AT_A_TIME, lines=lines, panels=panels, applied=counts, classes=classes)


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


def _stated(key: str, swept: Sequence[str], *tables: pd.DataFrame) -> bool:
    """Tell whether the value of another swept key states this one: `negative rate 0.1` states `attack_rate`."""
    whole = next((other for other in swept if key.startswith((f"{other}_", f"{other}."))), None)
    if whole is None:
        return False
    pairs = {pair for rows in tables for pair in zip(_words(rows, (whole,)), _words(rows, (key,)), strict=True)}
    return len({value for value, _ in pairs}) == len(pairs)


def _words(rows: pd.DataFrame, keys: tuple[str, ...]) -> list[str]:
    """Return the values of some columns as text, for each row."""
    columns = [[text(value) for value in rows[key].astype(object)] for key in keys if len(rows)]
    return [" · ".join(row) for row in zip(*columns, strict=True)] if columns else [""] * len(rows)


def _points(rows: pd.DataFrame) -> list[int]:
    """Return the position of each row's run in the sweep; 0 in a table of a version without that column."""
    return [int(point) for point in rows["point"]] if "point" in rows else [0] * len(rows)
