"""The callback `model_norm`."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.callbacks.base import Callback, EvaluationReport, RoundReport


class ModelNorm(Callback):
    """The Euclidean norm of the global model, recorded as `model_norm`."""

    kind: Literal["model_norm"] = "model_norm"
    when: Literal["round", "evaluation"] = Field("evaluation", description="After what it is recorded.")

    def on_round(self, report: RoundReport) -> dict[str, float]:
        return _norm(report) if self.when == "round" else {}

    def on_evaluation(self, report: EvaluationReport) -> dict[str, float]:
        return _norm(report) if self.when == "evaluation" else {}


def _norm(report: RoundReport | EvaluationReport) -> dict[str, float]:
    # The order of this sum does not depend on where the model lies in memory, as that of np.linalg.norm does.
    return {"model_norm": float(np.sqrt(np.square(report.model, dtype=np.float64).sum()))}
