"""What a role asks of the thing that trains: local steps, an evaluation, and the model as one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hpcps.layout import Layout, Vector
from hpcps.state import State


@dataclass(frozen=True)
class Progress:
    """What a few steps on the training shard saw.

    Attributes:
        steps: the number of batches.
        samples: the number of samples in them.
        loss: mean cross entropy over the samples, before each step; `inf` if it is not finite.
        correct: how many samples were classified rightly, before each step.
    """

    steps: int
    samples: int
    loss: float
    correct: int


@dataclass(frozen=True)
class Evaluation:
    """How the current model does on the whole test set.

    Attributes:
        samples: the number of test samples.
        loss: mean cross entropy over the samples; `inf` if it is not finite.
        accuracy: share classified rightly, 0 to 1; a sample whose outputs are not finite counts as wrong.
        finite: whether all outputs were finite.
    """

    samples: int
    loss: float
    accuracy: float
    finite: bool


class Examiner(Protocol):
    """A second network like a learner's, on the same device, that measures models while the learner trains on.

    It works in another thread than the learner does, in one at a time.
    """

    def copy_from(self, values: Vector) -> None:
        """Take the parameters to measure, `[d]`."""

    def load_statistics(self, values: Vector) -> None:
        """Take the BatchNorm statistics to measure with, `[k]`."""

    def reestimate_statistics(self) -> None:
        """Take the averages over one pass of the learner's shard instead; its training stream does not advance."""

    def evaluate(self) -> Evaluation:
        """Measure on the whole test set, which is the learner's (loaded at the first call)."""

    def cancel(self) -> None:
        """Have what is under way, and all that comes later, end with `CancelledError`, a batch later at most."""


class CancelledError(Exception):
    """The measurement was broken off."""


class Learner(Protocol):
    """A model, its optimizer and its shard of the data, on some device of some framework.

    The model crosses this border only as one flat float32 host vector `[layout.size]`, by copy.
    """

    @property
    def layout(self) -> Layout:
        """The trainable tensors, in the order they have in the flat vector."""

    @property
    def device(self) -> str:
        """Where it trains, such as `cpu` or `cuda:0`."""

    @property
    def batch_size(self) -> int:
        """Samples per step."""

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in the passes over the shard that make an epoch (`train.passes_per_epoch`)."""

    @property
    def steps_done(self) -> int:
        """Batches consumed by `train` and `observe`; drives the epoch and so the learning rate."""

    @property
    def learning_rate(self) -> float:
        """The rate that the next step will use."""

    def state(self) -> State:
        """Return a copy of what training changes: parameters, statistics, the optimizer's state, place in the data."""

    def restore(self, state: State) -> None:
        """Go on from a state; the steps after it are the same as they were."""

    def copy_to(self, out: Vector) -> None:
        """Copy the live model into `out`, `[d]`."""

    def copy_from(self, values: Vector) -> None:
        """Overwrite the live model with `values`, `[d]`; the optimizer's state stays."""

    def train(
        self, steps: int, *, anchor: Vector | None = None, pull: float = 0.0, epoch: int | None = None
    ) -> Progress:
        """Take optimizer steps on the next batches of the shard.

        Args:
            steps: how many.
            anchor: where the proximal step after every optimizer step pulls the model x, `[d]`:
                x = (1 - pull) x + pull anchor. Needed if `pull` is not 0.
            pull: how strongly, 0 to 1.
            epoch: the epochs that count as over for the learning rate's decay; by default the learner's own.
        """

    def observe(self, steps: int) -> Progress:
        """Run the next batches without stepping; only BatchNorm statistics change."""

    @property
    def examiner(self) -> Examiner | None:
        """What measures models beside training, made at the first call; None if that takes the learner itself."""

    def evaluate(self) -> Evaluation:
        """Measure the current model, with its running statistics, on the test set (loaded at the first call)."""

    @property
    def statistics(self) -> Vector:
        """A copy of the BatchNorm running means and variances, `[k]`; k is 0 for a model without BatchNorm."""

    def load_statistics(self, values: Vector) -> None:
        """Overwrite the running statistics with `values`, `[k]`."""

    def reestimate_statistics(self) -> None:
        """Replace the running statistics by their averages over one pass of the shard under the current model.

        The training stream does not advance.
        """
