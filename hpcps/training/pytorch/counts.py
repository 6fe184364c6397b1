"""What has been seen of the outputs of a network."""

from __future__ import annotations

import math

from torch import Tensor


class TorchCounts:
    """Counts samples, and how many of them are classified rightly.

    Attributes:
        samples: how many there were.
        correct: how many were right; one with outputs that are not finite is wrong.
        finite: whether all outputs were finite.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.correct = 0
        self.finite = True
        self._loss = 0.0

    def add(self, outputs: Tensor, labels: Tensor, summed_loss: Tensor) -> None:
        """Count `outputs` `[b, classes]` against `labels` `[b]`, and the sum of their losses."""
        good = outputs.isfinite().all(1)
        self.samples += len(labels)
        self.correct += int(((outputs.argmax(1) == labels) & good).sum())
        self.finite = self.finite and bool(good.all())
        self._loss += float(summed_loss)

    @property
    def mean_loss(self) -> float:
        """The mean over the samples so far; infinite if it is no number."""
        mean = self._loss / max(self.samples, 1)
        return mean if math.isfinite(mean) else math.inf
