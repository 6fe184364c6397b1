"""Counts of the outputs of a network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Counts:
    """Number of samples and correct classifications, and the loss of all outputs so far."""

    def __init__(self) -> None:
        self.samples = 0
        self.correct = 0
        self.finite = True
        self._loss = 0.0

    def add(self, outputs: NDArray[np.float32], labels: NDArray[Any]) -> None:
        """Compare `outputs` `[b, classes]` with `labels` `[b]`; a sample with an output that is not finite is wrong."""
        good = np.isfinite(outputs).all(1)
        self.samples += len(labels)
        self.correct += int(((outputs.argmax(1) == labels) & good).sum())
        self.finite = self.finite and bool(good.all())
        with np.errstate(invalid="ignore", over="ignore"):
            shifted = outputs.astype(np.float64) - outputs.max(1, keepdims=True)
            self._loss += float(np.sum(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]))

    @property
    def mean_loss(self) -> float:
        """The mean cross entropy over the samples so far; infinite if it is not finite."""
        mean = self._loss / max(self.samples, 1)
        return mean if math.isfinite(mean) else math.inf
