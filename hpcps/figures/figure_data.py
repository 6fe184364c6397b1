"""The data of an experiment's figures: their panels and lines, and the curves in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.curve import AppliedUpdates, ClassAccuracy, Curve, Values
from hpcps.figures.labels import SEPARATOR, without_tolerances

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


_SIMULATED = "simulated time"
_ONE_PROCESS = "all roles in one process"


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
        classes: the accuracy of each class at the end of each line, by panel; empty if no run has them.
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
    classes: dict[str, tuple[ClassAccuracy, ...]] = field(default_factory=dict)
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
    def in_one_process(self) -> bool:
        """Whether the roles take turns in one process, so that times are those of all roles together."""
        return _ONE_PROCESS in self.facts

    @property
    def palette(self) -> tuple[str, ...]:
        """The lines that have a style: a line keeps its style if it is drawn without others."""
        return self.all_lines or self.lines

    @property
    def rules(self) -> dict[str, str]:
        """The name of the rule of each line.

        Lines that differ only in the number of updates that the rule tolerates, such as `krum f 1` and `krum f 3`, are
        one rule, if no panel has two of them. Every other line is a rule of its own.
        """
        alike: dict[str, list[str]] = {}
        for line in self.palette if self.line_key == "rule" else ():
            alike.setdefault(without_tolerances(line), []).append(line)
        shown = [{curve.line for curve in curves} for curves in self.panels.values()]
        names = {line: line for line in self.palette}
        for name, group in alike.items():
            if len(group) > 1 and all(len(lines.intersection(group)) < 2 for lines in shown):
                names |= dict.fromkeys(group, name)
        return names

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
    def perplexed(self) -> bool:
        """Whether the curves have a perplexity."""
        return any(curve.perplexity is not None for curve in self.curves)

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


def text(value: Any) -> str:
    """Return a swept value as text."""
    if isinstance(value, float):
        return "none" if np.isnan(value) else f"{value:g}"
    return "none" if value is None else str(value)


def describe(rows: pd.DataFrame, lost: pd.DataFrame, epochs: str = "") -> str:
    """Describe the runs: data, processes, epochs, settings, seeds, and diverged, stalled and missing runs.

    Args:
        rows: their evaluations.
        lost: those without a result.
        epochs: describes the epochs, if the numbers alone do not.
    """

    def known(*columns: str) -> list[str]:
        return [column for column in columns if column in rows and rows[column].notna().any()]  # not those of a script

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
        *("/".join(text(name) for name in values(column)) for column in known("model", "data")),
        ", ".join(counted(column) for column in ("workers", "validators", "servers")),
        epochs or (counted("epochs") if whole in ("none", *lengths) else f"{'/'.join(lengths)} of {whole} epochs")
        if epochs or known("epochs")
        else "",
        *(dict.fromkeys(word for column in known("settings") for each in values(column) for word in _settings(each))),
        *("fidelity artifact" for column in known("fidelity") if "artifact" in map(text, values(column))),
        f"seed {text(seeds[0])}" if len(seeds) == 1 else f"{len(seeds)} seeds",
    ]
    if "simulation" in rows and any(text(kind) != "none" for kind in values("simulation")):
        facts.append(_SIMULATED)
    elif any(turns == 1 for column in known("one_process") for turns in values(column)):
        facts.append(_ONE_PROCESS)
    if "searched" in rows:
        keys = [text(value) for value in values("searched") if text(value) not in ("none", "nan")]
        facts += [f"{'/'.join(keys)} chosen by a search"] if keys else []
    if "holdout" in rows and rows["holdout"].max() > 0:
        shares = "/".join(f"{100 * share:g}" for share in values("holdout") if share > 0)
        facts.append(f"evaluated on {shares} % of the training samples, held out")
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
    return " · ".join(filter(None, facts))


def _settings(value: Any) -> list[str]:
    """Return the texts in a cell of the column `settings`, for people."""
    return [part.replace("_", " ") for part in text(value).split(SEPARATOR)] if isinstance(value, str) else []
