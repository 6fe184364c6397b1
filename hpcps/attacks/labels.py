"""Attacks on the labels that a worker trains on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.attacks.base import ByzantineAttack
from hpcps.registry.failures import described, errors_of, returned

BatchLabels = NDArray[np.int64]


class LabelAttack(ByzantineAttack, ABC):
    """An attack on training data: the attackers train on other labels, and send the result as an honest worker does."""

    scope: Literal["worker"] = Field(
        "worker", description="`worker`: floor(rate * workers) fixed attackers, each of which trains on other labels."
    )

    @abstractmethod
    def relabel(self, labels: BatchLabels, classes: int) -> BatchLabels:
        """Return the labels to train on.

        Args:
            labels: those of a batch `[b]` int64, from 0; they must not be changed.
            classes: the number of classes.
        """

    def relabelled(self, labels: BatchLabels, classes: int) -> BatchLabels:
        """Return what `relabel` returns.

        Raises:
            SpecError: a plugin's or package's `relabel` failed, or it did not return a label from 0 to classes - 1 for
                each label.
        """
        with errors_of(self, "its relabel() failed", foreign=True):
            found: object = self.relabel(labels, classes)
        good = isinstance(found, np.ndarray) and found.shape == labels.shape and found.dtype.kind in "iu"
        if not good or (found.size and not 0 <= found.min() <= found.max() < classes):  # type: ignore[attr-defined]
            what = f"{described(found)}: it must return {labels.size} whole numbers from 0 to {classes - 1}"
            raise returned(self, "relabel", what)
        return found.astype(np.int64, copy=False)  # type: ignore[attr-defined,no-any-return]

    def __call__(self, update: Any, *, random: np.random.Generator | None = None) -> NoReturn:
        """Refuse to corrupt an update.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"{self.kind} acts on the labels that a worker trains on, not on its update: "
            f"call its relabel(labels, classes), or use it in a run"
        )


class LabelFlip(LabelAttack):
    """The attackers train on the labels C - 1 - y instead of y, where C is the number of classes.

    The loss and the accuracy of training in their records are those on the flipped labels.

    Source: label-flipping in S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets
    via bucketing", ICLR 2022.
    """

    kind: Literal["label_flip"] = "label_flip"

    def relabel(self, labels: BatchLabels, classes: int) -> BatchLabels:
        return classes - 1 - labels
