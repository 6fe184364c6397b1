"""Counts of the outputs of a network."""

from __future__ import annotations

import math

from torch import Tensor


class Counts:
    """Counts samples and correct classifications, and sums the loss.

    Attributes:
        samples: number of samples.
        correct: number of correct classifications; a sample whose outputs are not finite counts as wrong.
        finite: whether all outputs were finite.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.correct = 0
        self.finite = True
        self._loss = 0.0

    def add(self, outputs: Tensor, labels: Tensor, summed_loss: Tensor) -> None:
        """Compare `outputs` `[b, classes]` with `labels` `[b]`, and add the sum of their losses."""
        good = outputs.isfinite().all(1)
        self.samples += len(labels)
        self.correct += int(((outputs.argmax(1) == labels) & good).sum())
        self.finite = self.finite and bool(good.all())
        self._loss += float(summed_loss)

    @property
    def mean_loss(self) -> float:
        """The mean loss over the samples so far; infinite if it is not finite."""
        mean = self._loss / max(self.samples, 1)
        return mean if math.isfinite(mean) else math.inf
