"""Sums over the batches of an evaluation: samples, correct classifications, and the loss."""

from __future__ import annotations

import math


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

    def add(self, samples: int, correct: int, finite: bool, summed_loss: float) -> None:
        """Add the counts of a batch, and the sum of the losses of its samples."""
        self.samples += samples
        self.correct += correct
        self.finite = self.finite and finite
        self._loss += summed_loss

    @property
    def mean_loss(self) -> float:
        """The mean loss over the samples so far; infinite if it is not finite."""
        mean = self._loss / max(self.samples, 1)
        return mean if math.isfinite(mean) else math.inf
