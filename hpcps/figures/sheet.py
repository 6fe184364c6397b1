"""What a figure of an experiment shows: which swept keys make its panels and lines, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.applied import Applied, applied
from hpcps.figures.curve import Curve, curve

REDUCED_BY = (
    "model.name",
    "data",
    "topology",
    "train.epochs",
    "train.local_steps",
    "heterogeneity",
)
"""Keys, or tables of keys, that, set otherwise than in the experiment file, make a run a reduced one."""

TIED = "\N{NO-BREAK SPACE}"

BASELINE = "SGD"
"""The line of the baseline, plain SGD."""

ONE_AT_A_TIME = "one key at a time"
"""What makes the lines where each panel holds a point against the same one."""

_SAME = ("model", "data", "data_limit", "epochs")
"""What runs must share for one to be a line in the other's figure."""


_SIMULATED = "simulated time"


@dataclass(frozen=True)
class Sheet:
    """The curves of one variant of an experiment.

    Attributes:
        line_key: the swept column that makes the lines; empty if nothing is swept.
        panel_keys: the swept columns that make the panels.
        lines: what lines there are, in the order of the sweep.
        panels: curves by panel, in the order of the sweep.
        variant: what the runs have that their file does not; empty if nothing.
        facts: what ran, in words.
        references: lines that belong into every panel: points outside the sweep's product, and the baseline.
        applied: what was applied of the updates, by panel, a line per line; empty in a synchronous experiment.
    """

    experiment: str
    line_key: str
    panel_keys: tuple[str, ...]
    lines: tuple[str, ...]
    panels: dict[str, tuple[Curve, ...]]
    variant: str
    facts: str
    references: tuple[Curve, ...] = ()
    applied: dict[str, tuple[Applied, ...]] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """Whether times are those of an imagined machine."""
        return _SIMULATED in self.facts

    @property
    def remark(self) -> str:
        """How the runs differ from their file: `"reduced: data.limit=5000"`; empty if they do not."""
        if not self.variant:
            return ""
        keys = [item.partition("=")[0] for item in self.variant.split(" ")]
        reduced = any(key == name or key.startswith(f"{name}.") for key in keys for name in REDUCED_BY)
        return f"{'reduced' if reduced else 'changed'}: {self.variant}"

    @property
    def line_title(self) -> str:
        """What the lines are values of, such as `rho`; empty where their names say it."""
        speaking = ("rule", "attack", "outside", ONE_AT_A_TIME)
        return "" if self.line_key in speaking else self.line_key.rpartition(".")[2]

    @property
    def curves(self) -> tuple[Curve, ...]:
        """All curves there are on it."""
        return tuple(curve for panel in self.panels.values() for curve in panel) + self.references

    @property
    def scored(self) -> tuple[str, ...]:
        """The lines with an acceptance rate."""
        having = {curve.line for curve in self.curves if curve.acceptance}
        return tuple(line for line in self.lines if line in having)


def sheets(frame: pd.DataFrame, baseline: pd.DataFrame | None = None) -> list[Sheet]:
    """Turn the table of `hpcps collect` into a sheet for each variant, in order of appearance.

    The rule makes the lines and everything else that is swept the panels; without a swept rule, the first swept key
    that is not the attack makes the lines. Seeds are averaged. A point outside the sweep's product is a line of its own
    in every panel; if the product is a single point, each point outside of it has a panel, where it is held against
    that one.

    Args:
        frame: the table.
        baseline: the table of the experiment to show as well, for reference, in sheets of the same model, data and
            length.

    Raises:
        RunError: the table has no evaluations.
    """
    if not (frame["event"] == "evaluation").any():
        raise RunError("no evaluation in this table yet: wait for the first epoch to end, then collect again")
    rows = frame[frame["event"].isin(["evaluation", "updates"])]
    swept = [key for key in frame.attrs.get("swept", []) if key != "seed"]
    away = rows["outside"].astype(str) if "outside" in rows else pd.Series("", rows.index)
    if (away != "").all():
        return [_sheet(part, "outside", (), variant) for variant, part in _groups(rows, ("variant",))]
    inside, others = rows[away == ""], rows[away != ""]
    others = others[others["event"] == "evaluation"] if swept else others
    candidates = [key for key in swept if key == "rule"] + [key for key in swept if key != "attack"] + swept
    line_key = candidates[0] if candidates else ""
    panel_keys = tuple(key for key in swept if key != line_key)
    result = []
    for variant, part in _groups(inside, ("variant",)):
        near = _near(others, part, variant)
        if near and not swept:
            result.append(_one_at_a_time(part, near, variant, frame.attrs.get("outside", {})))
            continue
        references = [curve(name, found) for name, found in near.items()]
        if baseline is not None:
            evaluations = baseline[baseline["event"] == "evaluation"]
            same = evaluations[_like(evaluations, part, (*_SAME, "workers"))]
            references += [curve(BASELINE, same)] if len(same) else []
        result.append(replace(_sheet(part, line_key, panel_keys, variant), references=tuple(references)))
    return result


def text(value: Any) -> str:
    """Put a swept value into words."""
    if isinstance(value, float):
        return "none" if np.isnan(value) else f"{value:g}"
    return "none" if value is None else str(value)


def _sheet(rows: pd.DataFrame, line_key: str, panel_keys: tuple[str, ...], variant: str) -> Sheet:
    evaluations, updates = rows[rows["event"] == "evaluation"], rows[rows["event"] == "updates"]
    line_keys = (line_key,) if line_key else ()

    def by_line(part: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
        return list(_groups(part, line_keys))

    return Sheet(
        experiment=text(rows["experiment"].iloc[0]),
        line_key=line_key,
        panel_keys=panel_keys,
        lines=tuple(line for line, _ in by_line(evaluations)),
        panels={
            panel: tuple(curve(line, runs) for line, runs in by_line(inside))
            for panel, inside in _groups(evaluations, panel_keys)
        },
        variant=variant,
        facts=_facts(evaluations),
        applied={
            panel: tuple(applied(line, runs) for line, runs in by_line(inside))
            for panel, inside in _groups(updates, panel_keys)
        },
    )


def _one_at_a_time(
    base: pd.DataFrame, changed: Mapping[str, pd.DataFrame], variant: str, keys: Mapping[str, list[str]]
) -> Sheet:
    """Make a sheet with a panel per point that is outside of a product of one: this point, and that one."""
    panels, counts = {}, {}
    for name, rows in changed.items():
        title = "\n".join(_change(key, base, rows) for key in keys.get(name, [])) or name
        parts = {"base": base, "changed": rows}
        panels[title] = tuple(curve(line, part[part["event"] == "evaluation"]) for line, part in parts.items())
        updates = {line: part[part["event"] == "updates"] for line, part in parts.items()}
        if all(len(part) for part in updates.values()):
            counts[title] = tuple(applied(line, part) for line, part in updates.items())
    plain = _sheet(base, "", (), variant)
    return replace(plain, line_key=ONE_AT_A_TIME, lines=("base", "changed"), panels=panels, applied=counts)


def _change(key: str, base: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Say what a key was, and is: `"absent: accumulate → reset"`."""
    was, now = (text(part[key].astype(object).iloc[0]) for part in (base, rows))
    return f"{key.partition('.')[2] or key}: {was}{TIED}→{TIED}{now}"


def _near(others: pd.DataFrame, rows: pd.DataFrame, variant: str) -> dict[str, pd.DataFrame]:
    """Return the points outside the product that can be drawn with some rows of it, by name."""
    found = {}
    for name, part in _groups(others, ("outside",)) if len(others) else ():
        variants = dict(_groups(part, ("variant",)))
        alike = [inside for inside in variants.values() if _like(inside, rows, _SAME).all()]
        chosen = variants.get(variant, alike[0] if alike else None)
        if chosen is not None and (chosen["event"] == "evaluation").any():
            found[name] = chosen
    return found


def _like(rows: pd.DataFrame, others: pd.DataFrame, columns: tuple[str, ...]) -> pd.Series:
    """Say which rows have in some columns what the first of the others has; a column that is missing says nothing."""
    alike = pd.Series(True, rows.index)
    for name in columns:
        if name in rows and name in others:
            wanted = text(others[name].astype(object).iloc[0])
            alike &= rows[name].astype(object).map(text) == wanted
    return alike


def _groups(rows: pd.DataFrame, keys: tuple[str, ...]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Split rows by the values of some columns, in order of appearance, each part with the values in words."""
    if not keys:
        if len(rows):
            yield "", rows
        return
    words = rows[list(keys)].astype(object).apply(lambda row: " · ".join(text(value) for value in row), axis=1)
    for word in words.unique() if len(rows) else ():
        yield word, rows[words == word]


def _facts(rows: pd.DataFrame) -> str:
    """Say what ran: data, processes, epochs, preset, seeds, and what is missing."""

    def values(column: str) -> list[Any]:
        return list(dict.fromkeys(rows[column].astype(object)))

    def counted(column: str) -> str:
        numbers = values(column)
        noun = column[:-1] if numbers == [1] else column
        return f"{'/'.join(text(number) for number in numbers)} {noun}"

    seeds = values("seed")
    unfinished = rows.loc[rows["status"] != "done", "run_id"].nunique()
    facts = [
        *("/".join(text(name) for name in values(column)) for column in ("model", "data") if column in rows),
        ", ".join(counted(column) for column in ("workers", "validators", "servers")),
        counted("epochs"),
        f"fidelity {'/'.join(text(name) for name in values('fidelity'))}",
        f"seed {text(seeds[0])}" if len(seeds) == 1 else f"{len(seeds)} seeds",
    ]
    if "simulation" in rows and any(text(kind) != "none" for kind in values("simulation")):
        facts.append(_SIMULATED)
    if unfinished:
        facts.append(f"{unfinished} of {rows['run_id'].nunique()} runs unfinished")
    return " · ".join(facts)
