"""Sums over the batches of an evaluation: samples, classifications by class, and the loss."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hpcps.training.trainer import NEAR, Evaluation


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
        self._near = 0
        self._confusion: NDArray[np.int64] | None = None

    def add(self, samples: int, correct: int, finite: bool, summed_loss: float) -> None:
        """Add the counts of a batch, and the sum of the losses of its samples."""
        self.samples += samples
        self.correct += correct
        self.finite = self.finite and finite
        self._loss += summed_loss

    def rank(self, outputs: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        """Compare the largest outputs of each sample of a batch, `[b, classes]`, with its label, `[b]`."""
        classes = outputs.shape[1]
        if self._confusion is None:
            self._confusion = np.zeros((classes, classes + 1), np.int64)
        good = np.isfinite(outputs).all(1)
        ranked = np.argsort(-outputs, axis=1, kind="stable")[:, :NEAR]
        self._near += int(((ranked == labels[:, None]).any(1) & good).sum())
        np.add.at(self._confusion, (labels, np.where(good, ranked[:, 0], classes)), 1)

    @property
    def mean_loss(self) -> float:
        """The mean loss over the samples so far; infinite if it is not finite."""
        mean = self._loss / max(self.samples, 1)
        return mean if math.isfinite(mean) else math.inf

    @property
    def evaluation(self) -> Evaluation:
        """The result of a test set whose batches were all counted, and ranked."""
        assert self._confusion is not None, "a test set has samples"
        accuracy, near = self.correct / self.samples, self._near / self.samples
        confusion = tuple(map(tuple, self._confusion.tolist()))
        return Evaluation(self.samples, self.mean_loss, accuracy, self.finite, near, confusion)
