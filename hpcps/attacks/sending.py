"""Attacks that leave the values of updates alone: wrong labels, no update, a late update, wrong durations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.attacks.base import ByzantineAttack
from hpcps.registry.config import DAY, LARGEST_FACTOR
from hpcps.registry.failures import described, errors_of, returned


class HonestValues(ByzantineAttack):
    """An attack that leaves the values of an update alone.

    Attributes:
        refusal: what it acts on instead, for the error of a call.
    """

    refusal: ClassVar[str]

    acts_on: Literal["update"] = Field("update", description="`update`: the encoding is that of an honest worker.")

    def __call__(self, update: Any, *, random: np.random.Generator | None = None) -> NoReturn:
        """Refuse to corrupt an update.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{self.kind} acts on {self.refusal}")


class SendingAttack(HonestValues):
    """An attack that delays or withholds an update; the values are those of an honest worker."""

    refusal = "when a worker sends its update, not on its values: use it in a run"
    withholds: ClassVar[bool] = False
    """Whether the attackers do not send their updates."""

    scope: Literal["worker"] = Field(
        "worker", description="`worker`: floor(rate * workers) fixed attackers; an update comes as a whole."
    )

    @property
    def delay(self) -> float:
        """The seconds that an attacker waits before it sends."""
        return 0.0


class Silent(SendingAttack):
    """The attackers do not take part: they send no update.

    As with `communication.participation`, an attacker says that it is absent, so that nobody waits for it until a
    timeout, and keeps its update as its residual: it trains on from there, and never sends it later.
    Synchronous: rules combine the updates of the others. Asynchronous: it follows `asynchronous.absent`; with
    `accumulate` it trains on from its own model and never asks for a new one, with `reset` it gets the model.
    """

    kind: Literal["silent"] = "silent"
    withholds: ClassVar[bool] = True


class Late(SendingAttack):
    """The attackers delay their updates by `seconds`, in addition to `heterogeneity.delay`.

    Synchronous: everyone waits for them, and the model is the same. Asynchronous: their updates are stale. In one
    process the delay passes in virtual time.
    """

    kind: Literal["late"] = "late"
    seconds: float = Field(1.0, gt=0, le=DAY, description="Delay of an attacker's update in seconds.")

    @property
    def delay(self) -> float:
        return self.seconds


class ClockAttack(HonestValues):
    """An attack on a policy of local steps: the attackers report other seconds per step than they measure.

    They take as many steps as the policy then allows, and send the update of these.
    """

    refusal = "the durations that a worker reports to a policy of local steps, not on its update: use it in a run"

    scope: Literal["worker"] = Field(
        "worker", description="`worker`: floor(rate * workers) fixed attackers, each of which reports for itself."
    )
    factor: float = Field(10.0, gt=1, le=LARGEST_FACTOR, description="How many times as slow, or as fast.")

    @property
    def reported(self) -> float:
        """What the attackers multiply their seconds per step by when they report them."""
        return self.factor


class SlowClock(ClockAttack):
    """The attackers report `factor` times the seconds per step that they need.

    ESync takes such an attacker for the slowest role, and ends the steps of all others when its first step has ended;
    DyLU gives the attackers fewer steps.
    """

    kind: Literal["slow_clock"] = "slow_clock"


class FastClock(ClockAttack):
    """The attackers report the seconds per step divided by `factor`.

    ESync lets them take steps that end later than it expects, and everyone waits for them; with DyLU the steps of all
    others become fewer.
    """

    kind: Literal["fast_clock"] = "fast_clock"

    @property
    def reported(self) -> float:
        return 1 / self.factor


BatchLabels = NDArray[np.int64]


class LabelAttack(HonestValues, ABC):
    """An attack on training data: the attackers train on other labels, and send the result as an honest worker does."""

    refusal = (
        "the labels that a worker trains on, not on its update: call its relabel(labels, classes), or use it in a run"
    )

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


class LabelFlip(LabelAttack):
    """The attackers train on the labels C - 1 - y instead of y, where C is the number of classes.

    The loss and the accuracy of training in their records are those on the flipped labels.

    Source: label-flipping in S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets
    via bucketing", ICLR 2022.
    """

    kind: Literal["label_flip"] = "label_flip"

    def relabel(self, labels: BatchLabels, classes: int) -> BatchLabels:
        return classes - 1 - labels
