"""The interface between roles and a training backend: local steps, and the model as one flat vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, astuple
from typing import Any

import numpy as np

from hpcps.data.base import Facts
from hpcps.data.batches import Batch, BatchStream, StreamState
from hpcps.data.samples import Labels
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.spec.schema import Train
from hpcps.training.evaluation import Evaluator, Progress, TestSet
from hpcps.training.schedule import learning_rate

Relabel = Callable[[Labels], Labels]
"""Returns the labels to train on instead of those of a batch `[b]`."""


class FlatOptimizer(ABC):
    """Updates a flat model with its gradient; keeps state between steps. Arrays are those of the backend."""

    @abstractmethod
    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        """Take one step in place.

        Args:
            parameters: `[d]`.
            gradient: `[d]`; it may be overwritten.
            rate: the learning rate of this step.
        """

    @abstractmethod
    def state(self) -> State:
        """Return a copy of the state between steps, such as the momentum."""

    @abstractmethod
    def restore(self, state: State, device: Any) -> None:
        """Continue from a state, on the device of the parameters."""


class Trainer(Evaluator):
    """A model, its optimizer and its shard of the data, on some device of some framework.

    Roles get and set the model only as one flat float32 vector `[layout.size]`, by copy; the vector is on the host, or
    on the device of the role's buffers.
    """

    _optimizer: FlatOptimizer

    def __init__(
        self,
        model: Model,
        facts: Facts,
        train: Train,
        stream: BatchStream,
        *,
        weights: np.random.Generator,
        test_set: TestSet,
        step_seed: Callable[[int], int],
    ) -> None:
        """Build the network and set its weights.

        Args:
            model: the network.
            facts: the facts of the data set.
            train: the optimizer, its schedule, threads and device.
            stream: the batches to train on.
            weights: draws the initial weights.
            test_set: the test set.
            step_seed: returns the seed of what the network draws in a step, such as the masks of dropout, from the
                number of steps before it.
        """
        super().__init__(test_set)
        self._train = train
        self._stream = stream
        self._step_seed = step_seed
        self._steps_done = 0
        self._build(model, facts, weights)

    @abstractmethod
    def _build(self, model: Model, facts: Facts, weights: np.random.Generator) -> None:
        """Build the network and the optimizer."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The trainable tensors, in their order in the flat vector."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The device that trains, such as `cpu` or `cuda:0`."""

    @property
    def batch_size(self) -> int:
        """Samples per step, from the next one on."""
        return self._stream.batch_size

    @batch_size.setter
    def batch_size(self, samples: int) -> None:
        self._stream.batch_size = samples

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch, which has `train.passes_per_epoch` passes over the shard."""
        return self._train.passes_per_epoch * self._stream.batches_per_epoch

    @property
    def steps_done(self) -> int:
        """Batches consumed by `train`, `observe` and `skip`; determines the epoch and so the learning rate."""
        return self._steps_done

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._rate()

    def state(self) -> State:
        """Return a copy of the training state: parameters, statistics, optimizer state, position in the data."""
        parameters = np.empty(self.layout.size, np.float32)
        self.copy_to(parameters)
        own = self.own_state()
        return State({"parameters": parameters, **own.arrays}, own.facts)

    def own_state(self) -> State:
        """Return a copy of the training state without the parameters, which the next model replaces."""
        position = {"steps": self._steps_done, "stream": asdict(self._stream.state)}
        return State({"statistics": self.statistics}, position).having(optimizer=self._optimizer_state())

    def restore(self, state: State) -> None:
        """Restore a state; the following steps repeat exactly."""
        self.copy_from(state.arrays["parameters"])
        self.load_statistics(state.arrays["statistics"])
        self._steps_done = state.facts["steps"]
        self._stream.restore(StreamState(**state.facts["stream"]))
        self._restore_optimizer(state.part("optimizer"))

    def position(self) -> list[int]:
        """Return the number of steps, and the position in the data; see `StreamState`."""
        return [self._steps_done, *astuple(self._stream.state)]

    def go_to(self, position: Sequence[int]) -> None:
        """Go on from such a position: the learning rate, and the batches that follow, are those after it."""
        self._steps_done = position[0]
        self._stream.restore(StreamState(*position[1:]))

    def go_to_step(self, step: int) -> None:
        """Go on after so many steps with batches of the usual size."""
        self._steps_done = step
        self._stream.go_to(step)

    def restore_optimizer(self, state: State) -> None:
        """Go on with the optimizer of a state of this trainer, such as its momentum; all else stays as it is."""
        self._restore_optimizer(state.part("optimizer"))

    @abstractmethod
    def _optimizer_state(self) -> State:
        """Return the state of the optimizer, whose vectors have the order of the layout."""

    @abstractmethod
    def _restore_optimizer(self, state: State) -> None:
        """Restore a state that `_optimizer_state` has returned."""

    @abstractmethod
    def copy_to(self, out: Vector) -> None:
        """Copy the live model into `out`, `[d]`."""

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
        assert anchor is not None or not pull, "a proximal step needs an anchor"
        with self._in_order():
            centre = self._on_device(anchor) if anchor is not None and pull else None
            return self._run(steps, lambda: self._step(self._rate(epoch), centre, pull), relabel)

    def observe(self, steps: int) -> Progress:
        """Run the next batches without stepping; only BatchNorm statistics change."""
        with self._in_order():
            return self._run(steps, None)

    def _in_order(self) -> AbstractContextManager[object]:
        """Return a context in which the device does its work after all work of earlier such contexts."""
        return nullcontext()

    @abstractmethod
    def _on_device(self, values: Vector) -> Any:
        """Return an array of the backend like its parameters with these values, `[d]`."""

    @abstractmethod
    def _step(self, rate: float, centre: Any, pull: float) -> None:
        """Take an optimizer step, and a proximal step if there is a centre."""

    @abstractmethod
    def _run(self, steps: int, act: Callable[[], None] | None, relabel: Relabel | None = None) -> Progress:
        """Run the next batches; call `act` after the gradient of each. Without `act` no gradient is needed."""

    def skip(self, steps: int) -> Progress:
        """Count steps without taking them: they are in vain."""
        self._steps_done += steps
        return Progress(steps, 0, float("inf"), 0)

    @abstractmethod
    def loss_on(self, number: int) -> Callable[[Vector], float]:
        """Return a function that measures models `[d]` on one batch of the shard: it returns the mean loss.

        The batch depends only on the number and is not augmented. The function uses the running statistics, as
        `evaluate` does. The trainer does not change, and its training stream does not advance. The loss is `inf` if it
        is not finite.
        """

    @property
    @abstractmethod
    def evaluator(self) -> Evaluator | None:
        """The background evaluator, created at the first call; None if evaluation needs the trainer itself."""

    @property
    @abstractmethod
    def statistics(self) -> Vector:
        """A copy of the BatchNorm running means and variances, `[k]`; k is 0 for a model without BatchNorm."""

    def _rate(self, epoch: int | None = None) -> float:
        return learning_rate(self._train, self._steps_done, self.steps_per_epoch, epoch)

    def _next_batch(self, relabel: Relabel | None) -> Batch:
        inputs, labels = next(self._stream)
        return inputs, labels if relabel is None else relabel(labels)


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
