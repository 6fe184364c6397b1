"""The file of an evaluation, with the confusion matrix."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import InputError
from hpcps.inputs import MiB, read_json
from hpcps.records.files import write_whole, writing
from hpcps.records.table import numbers
from hpcps.training.evaluation import Evaluation

EVALUATION = "evaluation.json"
"""The file in a run's folder with the evaluation of its final model; during a run with an evaluator, of its latest."""

CLASSES = "class_accuracy."
"""The prefix of the columns of a table with the accuracy of each class."""

_MOST = 64 * MiB


def write_evaluation(file: Path, evaluation: Evaluation) -> None:
    """Write an evaluation as JSON: its fields and `by_class`; a loss that is not finite is a text.

    Raises:
        RunError: it cannot be written.
    """
    loss = evaluation.loss if np.isfinite(evaluation.loss) else str(evaluation.loss)
    content = {**vars(evaluation), "loss": loss, "by_class": evaluation.by_class}
    with writing(file):
        write_whole(file, json.dumps(content))


def read_evaluation(run: Path) -> Evaluation | None:
    """Read the evaluation in a run's folder; None if there is none, or the file is damaged."""
    with suppress(InputError, TypeError, ValueError, OverflowError):
        match read_json(run / EVALUATION, _MOST):
            case {
                "samples": int(samples), "loss": float() | int() | str() as loss, "finite": bool(good),
                "accuracy": float() | int() as accuracy, "top5": float() | int() as top5, "confusion": list(matrix),
            }:  # fmt: skip
                rows = tuple(tuple(int(count) for count in row) for row in matrix)
                if rows and all(len(row) == len(rows) + 1 and min(row) >= 0 for row in rows):
                    return Evaluation(samples, float(loss), float(accuracy), good, float(top5), rows)
    return None


def with_evaluation(table: pd.DataFrame, run: Path) -> pd.DataFrame:
    """Return the table of a run with `top5` and `class_accuracy` of the file in the row of its last evaluation.

    The table stays as it is if it has them, which an evaluator has recorded, or if there is no such file.
    """
    rows = np.flatnonzero(table["event"] == "evaluation") if "event" in table else np.zeros(0, int)
    if not len(rows) or "top5" in table or (found := read_evaluation(run)) is None:
        return table
    last = rows[np.argmax(np.nan_to_num(numbers(table, "epoch")[rows]))]
    values: dict[str, Any] = {"top5": found.top5}
    values |= {f"{CLASSES}{number}": share for number, share in enumerate(found.by_class)}
    added = {name: np.full(len(table), np.nan) for name in values}
    for name, column in added.items():
        column[last] = np.nan if values[name] is None else values[name]
    return pd.concat([table, pd.DataFrame(added, table.index)], axis="columns")
