"""The interface between roles and a training backend: local steps, evaluation, and the model as one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from hpcps.data.batches import Batch, BatchStream, StreamState
from hpcps.data.samples import Labels
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.spec.schema import Train
from hpcps.training.schedule import learning_rate

NEAR = 5
"""How many of the classes with the largest outputs `Evaluation.top5` looks at."""

Relabel = Callable[[Labels], Labels]
"""Returns the labels to train on instead of those of a batch `[b]`."""


@dataclass(frozen=True)
class Progress:
    """The result of some steps on the training shard.

    Attributes:
        steps: the number of batches.
        samples: the number of samples in them.
        loss: mean loss of the samples, before each step; `inf` if it is not finite. It is the cross entropy unless the
            network defines another one.
        correct: how many samples were classified rightly, before each step.
    """

    steps: int
    samples: int
    loss: float
    correct: int

    @property
    def accuracy(self) -> float:
        """Share of the samples classified rightly, before each step; 0 without samples."""
        return self.correct / self.samples if self.samples else 0.0


@dataclass(frozen=True)
class Evaluation:
    """The result of a model on the whole test set.

    Attributes:
        samples: the number of test samples.
        loss: mean loss of the samples, as in `Progress`; `inf` if it is not finite.
        accuracy: share classified rightly, 0 to 1; a sample whose outputs are not finite counts as wrong.
        finite: whether all outputs were finite.
        top5: share whose class is among the `NEAR` classes with the largest outputs.
        confusion: the number of samples of each class (row) that were taken for each class (column); the last column
            counts those whose outputs are not finite.
    """

    samples: int
    loss: float
    accuracy: float
    finite: bool
    top5: float
    confusion: tuple[tuple[int, ...], ...]

    @property
    def by_class(self) -> tuple[float | None, ...]:
        """The accuracy of each class; None for a class without samples."""
        return tuple(row[own] / sum(row) if any(row) else None for own, row in enumerate(self.confusion))


class Evaluator(Protocol):
    """A second network like a trainer's, on the same device, that evaluates models while the trainer trains.

    It runs in a thread other than the trainer's, and only in one thread at a time.
    """

    def copy_from(self, values: Vector) -> None:
        """Set the parameters to evaluate, `[d]`."""

    def load_statistics(self, values: Vector) -> None:
        """Set the BatchNorm statistics for the evaluation, `[k]`."""

    def reestimate_statistics(self) -> None:
        """Set the statistics to averages over one pass of the trainer's shard; its training stream does not advance."""

    def evaluate(self) -> Evaluation:
        """Evaluate on the trainer's whole test set (loaded at the first call)."""

    def cancel(self) -> None:
        """Make the current evaluation and all later ones raise `CancelledError`, within one batch."""


class CancelledError(Exception):
    """The evaluation was cancelled."""


class Trainer(Protocol):
    """A model, its optimizer and its shard of the data, on some device of some framework.

    Roles get and set the model only as one flat float32 vector `[layout.size]`, by copy; the vector is on the host, or
    on the device of the role's buffers.
    """

    @property
    def layout(self) -> Layout:
        """The trainable tensors, in their order in the flat vector."""

    @property
    def device(self) -> str:
        """The device that trains, such as `cpu` or `cuda:0`."""

    @property
    def batch_size(self) -> int:
        """Samples per step."""

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch, which has `train.passes_per_epoch` passes over the shard."""

    @property
    def steps_done(self) -> int:
        """Batches consumed by `train` and `observe`; determines the epoch and so the learning rate."""

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    def state(self) -> State:
        """Return a copy of the training state: parameters, statistics, optimizer state, position in the data."""

    def restore(self, state: State) -> None:
        """Restore a state; the following steps repeat exactly."""

    def copy_to(self, out: Vector) -> None:
        """Copy the live model into `out`, `[d]`."""

    def copy_from(self, values: Vector) -> None:
        """Overwrite the live model with `values`, `[d]`; the optimizer's state stays."""

    def train(
        self,
        steps: int,
        *,
        anchor: Vector | None = None,
        pull: float = 0.0,
        epoch: int | None = None,
        relabel: Relabel | None = None,
    ) -> Progress:
        """Take optimizer steps on the next batches of the shard.

        Args:
            steps: their number.
            anchor: the centre of the proximal step after every optimizer step, `[d]`: the model x becomes
                (1 - pull) x + pull anchor. Required if `pull` is not 0.
            pull: the weight of the anchor, 0 to 1.
            epoch: the finished epochs for the learning rate's decay; by default the trainer's own.
            relabel: changes the labels of each batch.
        """

    def observe(self, steps: int) -> Progress:
        """Run the next batches without stepping; only BatchNorm statistics change."""

    def skip(self, steps: int) -> Progress:
        """Count steps without taking them: they are in vain."""

    def loss_on(self, number: int) -> Callable[[Vector], float]:
        """Return a function that measures models `[d]` on one batch of the shard: it returns the mean loss.

        The batch depends only on the number and is not augmented. The function uses the running statistics, as
        `evaluate` does. The trainer does not change, and its training stream does not advance. The loss is `inf` if it
        is not finite.
        """

    @property
    def evaluator(self) -> Evaluator | None:
        """The background evaluator, created at the first call; None if evaluation needs the trainer itself."""

    def evaluate(self) -> Evaluation:
        """Evaluate the current model, with its running statistics, on the test set (loaded at the first call)."""

    @property
    def statistics(self) -> Vector:
        """A copy of the BatchNorm running means and variances, `[k]`; k is 0 for a model without BatchNorm."""

    def load_statistics(self, values: Vector) -> None:
        """Overwrite the running statistics with `values`, `[k]`."""

    def reestimate_statistics(self) -> None:
        """Replace the running statistics by their averages over one pass of the shard under the current model.

        The training stream does not advance.
        """


class ShardTrainer:
    """The parts of `Trainer` that do not depend on the framework: the stream of batches and the count of steps."""

    def __init__(self, train: Train, stream: BatchStream, step_seed: Callable[[int], int]) -> None:
        """Take the schedule, the batches to train on, and the seed of what the network draws in each step."""
        self._train = train
        self._stream = stream
        self._step_seed = step_seed
        self._steps_done = 0

    @property
    def batch_size(self) -> int:
        """See `Trainer.batch_size`."""
        return self._train.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """See `Trainer.steps_per_epoch`."""
        return self._train.passes_per_epoch * self._stream.batches_per_epoch

    @property
    def steps_done(self) -> int:
        """See `Trainer.steps_done`."""
        return self._steps_done

    @property
    def learning_rate(self) -> float:
        """See `Trainer.learning_rate`."""
        return self._rate()

    def skip(self, steps: int) -> Progress:
        """See `Trainer.skip`."""
        self._steps_done += steps
        return Progress(steps, 0, float("inf"), 0)

    def _rate(self, epoch: int | None = None) -> float:
        return learning_rate(self._train, self._steps_done, self.steps_per_epoch, epoch)

    def _next_batch(self, relabel: Relabel | None) -> Batch:
        inputs, labels = next(self._stream)
        return inputs, labels if relabel is None else relabel(labels)

    def _position(self) -> dict[str, object]:
        """Return the position in the data, for `_go_on`."""
        return {"steps": self._steps_done, "stream": asdict(self._stream.state)}

    def _go_on(self, state: State) -> None:
        self._steps_done = state.facts["steps"]
        self._stream.restore(StreamState(**state.facts["stream"]))


def training_fields(trainer: Trainer, seen: Sequence[Progress]) -> dict[str, object]:
    """Return how far a trainer is, and the means over its steps since the last round."""
    samples = sum(progress.samples for progress in seen)
    return {
        "step": trainer.steps_done,
        "epoch": trainer.steps_done / trainer.steps_per_epoch,
        "samples": samples,
        "loss": sum(p.loss * p.samples for p in seen if p.samples) / samples if samples else None,
        "train_accuracy": sum(p.correct for p in seen) / samples if samples else None,
    }
