"""The file of an evaluation, with the confusion matrix."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np

from hpcps.errors import InputError
from hpcps.inputs import MiB, finite, read_json
from hpcps.records.files import write_whole, writing
from hpcps.training.evaluation import Evaluation

EVALUATION = "evaluation.json"
"""The file in a run's folder with the evaluation of its final model; during a run with an evaluator, of its latest."""

_MOST = 64 * MiB


def write_evaluation(file: Path, evaluation: Evaluation) -> None:
    """Write an evaluation as JSON: its fields and `by_class`; a loss that is not finite is a text.

    Raises:
        RunError: it cannot be written.
    """
    loss = evaluation.loss if np.isfinite(evaluation.loss) else str(evaluation.loss)
    content = {**vars(evaluation), "loss": loss, "by_class": evaluation.by_class}
    if evaluation.perplexity is None:
        del content["perplexity"]
    with writing(file):
        write_whole(file, json.dumps(content))


def read_evaluation(run: Path) -> Evaluation | None:
    """Read the evaluation in a run's folder; None if there is none, or the file is damaged."""
    with suppress(InputError, TypeError, ValueError, OverflowError):
        match read_json(run / EVALUATION, _MOST):
            case {
                "samples": int(samples), "loss": float() | int() | str() as loss, "finite": bool(good),
                "accuracy": float() | int() as accuracy, "top5": float() | int() as top5, "confusion": list(matrix),
                **rest,
            }:  # fmt: skip
                rows = tuple(tuple(int(count) for count in row) for row in matrix)
                if rows and all(len(row) == len(rows) + 1 and min(row) >= 0 for row in rows):
                    perplexity = None if rest.get("perplexity") is None else finite(rest["perplexity"])
                    return Evaluation(samples, float(loss), float(accuracy), good, float(top5), rows, perplexity)
    return None
