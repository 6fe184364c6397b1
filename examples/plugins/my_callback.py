"""A callback: records how far each round moves the global model."""

from typing import Any, Literal

import numpy as np

from hpcps.callbacks import Callback


class ModelChange(Callback):
    """The Euclidean norm of the change of the global model in a round, as `model_change`."""

    kind: Literal["model_change"] = "model_change"
    _before: Any = None

    def on_round(self, report):
        """Return the norm, from the second round on."""
        before, self._before = self._before, report.model
        return {} if before is None else {"model_change": np.linalg.norm(report.model - before)}
