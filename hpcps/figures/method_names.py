"""The names of training methods, such as SSGD and ASGD, from the settings of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from hpcps.figures.figure_data import text
from hpcps.figures.labels import SEPARATOR, of_key, of_value
from hpcps.records.totals import TOTALS

STANDALONE = "standalone"
"""The method of the single-process baseline."""

SETTINGS = ("mode", "train.local_steps", "rule", "workers")
"""The columns from which a method gets its name."""

_ASYNCHRONOUS = {"naive_async": "ASGD", "dc_asgd": "DC-ASGD", "fed_async": "FedAsync"}
_POLICIES = {"esync": "ESync", "dylu": "DyLU"}

_COLUMNS = ("mode", "rule", "epochs", "participation", "skip_rate", "simulation.query")
_TABLES = ("train.", "validation.", "asynchronous.", "communication.", "transport.")


def compares_methods(frame: pd.DataFrame) -> bool:
    """Return whether the experiment of a table sweeps the mode of training or its local steps, and has totals."""
    swept = {"mode", "train.local_steps"}.intersection(frame.attrs.get("swept", []))
    return bool(swept) and bool((frame["event"] == TOTALS).any())


def part_of_method(key: str) -> bool:
    """Return whether a swept column belongs to the method; others, such as `data.split`, are panels of a figure."""
    return key in _COLUMNS or key.startswith(_TABLES)


def method_of(mode: str, local_steps: str, rule: str, workers: float) -> str:
    """Return the name of a method: `SSGD`, `ASGD`, `DC-ASGD`, `ESync`, `local SGD, 4 steps`.

    Args:
        mode: `train.mode`.
        local_steps: the text of `train.local_steps`: a number, or a policy and its keys.
        rule: the text of `validation.rule`.
        workers: the number of workers; without workers, it is `STANDALONE`.
    """
    if not workers:
        return STANDALONE
    kind, policy = rule.split(" ")[0], local_steps.split(" ")[0]
    if mode == "async":
        name, usual = _ASYNCHRONOUS.get(kind, kind), True
    elif policy in _POLICIES or mode in _POLICIES:
        name, usual = _POLICIES[policy if policy in _POLICIES else mode], kind == "average"
        policy = "1"
    else:
        name, usual = "SSGD" if policy == "1" else "local SGD", kind == "average"
    return ", ".join([name, *([f"{policy} steps"] if policy != "1" else []), *([] if usual else [of_value(kind)])])


def name_methods(runs: Sequence[Mapping[Any, Any]], panels: Sequence[str], swept: Sequence[str]) -> list[str]:
    """Return the name of the method of each run; it has the values in which runs of one panel and method differ.

    Args:
        runs: the columns of each run, among them `SETTINGS` and those swept.
        panels: the panel of each run.
        swept: the swept columns.
    """
    keys = [key for key in swept if part_of_method(key)]
    words = [{key: text(run.get(key)) for key in keys} for run in runs]
    names = []
    for run in runs:
        mode, steps, rule = (text(run[key]) for key in SETTINGS[:3])
        names.append(method_of(mode, steps, rule, float(run["workers"])))
    seen: dict[tuple[str, str, str], set[str]] = {}
    for name, panel, values in zip(names, panels, words, strict=True):
        for key, value in values.items():
            seen.setdefault((name, panel, key), set()).add(value)
    varying = {(name, key) for (name, _, key), values in seen.items() if len(values) > 1 and name != STANDALONE}
    return [
        ", ".join([name, *(_difference(key, value) for key, value in values.items() if (name, key) in varying)])
        for name, values in zip(names, words, strict=True)
    ]


def _difference(key: str, value: str) -> str:
    return of_value(value) if key == "rule" else f"{of_key(key)} {of_value(value)}"


def panel_of(settings: Mapping[Any, Any], swept: Sequence[str]) -> str:
    """Return the panel of a run: the values of the swept columns that are no part of a method, such as `split: iid`."""
    keys = [key for key in swept if key != "seed" and not part_of_method(key) and key in settings]
    return SEPARATOR.join(f"{of_key(key)}: {of_value(text(settings[key]))}" for key in keys)
