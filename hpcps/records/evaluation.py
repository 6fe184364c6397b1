"""The evaluations of a run: the file of one, with the confusion matrix, and what the records say of the evaluator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.errors import InputError
from hpcps.inputs import MiB, finite, read_json
from hpcps.records.files import write_whole, writing
from hpcps.training.evaluation import Evaluation

EVALUATION = "evaluation.json"
"""The file in a run's folder with the evaluation of its final model; during a run with an evaluator, of its latest."""

_MOST = 64 * MiB


def is_evaluated(run: Path) -> bool:
    """Return whether a run's folder has an evaluation that was written after the run was done."""
    try:
        return (run / EVALUATION).stat().st_mtime_ns > (run / "DONE").stat().st_mtime_ns
    except OSError:
        return False


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


DIED = "evaluator_died"
"""The event of the line that the evaluator writes when the process that evaluates has ended."""


def evaluator_note(deaths: Sequence[Mapping[str, Any]], epochs: Mapping[float, bool], *, awaited: bool) -> str:
    """Describe how many epochs it evaluated, how often its process ended, and whether its last evaluation is awaited.

    Args:
        deaths: the lines of the event `DIED`.
        epochs: whether each epoch was evaluated; those that are not decided yet are missing.
        awaited: whether all other processes have ended, but that which gives the models to the evaluator.

    Returns:
        The text; empty if there is nothing to say.
    """
    said = []
    if not all(epochs.values()):
        said.append(f"{sum(epochs.values())} of {len(epochs)} epochs evaluated")
    if deaths:
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        last = f"the model of round {finite(deaths[-1].get('round')):.0f}: it {deaths[-1].get('how')}"
        lost = sum(line.get("again") is False for line in deaths)
        models = f"{lost} model{'s' * (lost != 1)}"
        said.append(
            f"the process that evaluates ended {times}, {'' if len(deaths) == 1 else 'the last time '}with {last}"
            + (f"; {models} could not be evaluated" if lost else "; another process evaluated the model")
        )
    if awaited:
        said.append("the training is over, and the evaluation of the last model is awaited")
    return f"evaluator-0: {'; '.join(said)}" if said else ""
