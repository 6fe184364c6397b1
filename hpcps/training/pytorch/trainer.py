"""The trainer in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from hpcps.data.base import Facts
from hpcps.data.batches import BatchStream, Normaliser
from hpcps.data.samples import Samples
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.spec.schema import Train
from hpcps.training.counts import Counts
from hpcps.training.pytorch.device import compute_device, prepare_device
from hpcps.training.pytorch.evaluator import TestSet, TorchEvaluator, count, reestimate_statistics
from hpcps.training.pytorch.flat import TorchFlatModel, readable
from hpcps.training.pytorch.network import build_network
from hpcps.training.pytorch.optimizers import build_optimizer
from hpcps.training.pytorch.step import Step
from hpcps.training.trainer import Evaluation, Progress, Relabel, ShardTrainer


class TorchTrainer(ShardTrainer):
    """Trains one network on one shard; see `hpcps.training.trainer.Trainer`.

    Attributes:
        place: where it computes.
    """

    def __init__(
        self,
        model: Model,
        facts: Facts,
        train: Train,
        stream: BatchStream,
        *,
        weights: np.random.Generator,
        test: Callable[[], Samples],
        normalise: Normaliser,
        step_seed: Callable[[int], int],
    ) -> None:
        """Build the network and set its weights.

        Args:
            model: the network.
            facts: the facts of the data set.
            train: the optimizer, its schedule, threads and device.
            stream: the batches to train on.
            weights: draws the initial weights.
            test: reads the test set; called at the first evaluation.
            normalise: normalises the test images.
            step_seed: returns the seed of what the network draws in a step, such as the masks of dropout, from the
                number of steps before it.
        """
        super().__init__(train, stream, step_seed)
        self.compute_device = compute_device(prepare_device(train))
        last = model.memory_format(self.compute_device.device.type) == "channels_last"
        with self.compute_device.in_order():
            network = build_network(model, facts, self.compute_device.device)
            self._model = TorchFlatModel(network, self.compute_device, channels_last=last)
            self._model.draw_weights(weights)
        self._forward = Step(self._model, backward=False)
        self._gradient = Step(self._model, backward=True)
        self._optimizer = build_optimizer(train.optimizer)
        self._test_set = TestSet(test, normalise)
        self._evaluator: TorchEvaluator | None = None

    @property
    def layout(self) -> Layout:
        """The trainable tensors."""
        return self._model.layout

    @property
    def device(self) -> str:
        """The device for training."""
        return str(self.compute_device.device)

    def state(self) -> State:
        """Return a copy of everything that training changes."""
        parameters = np.empty(self.layout.size, np.float32)
        self.copy_to(parameters)
        arrays = {"parameters": parameters, "statistics": self.statistics}
        with self.compute_device.in_order():
            optimizer = self._optimizer.state()
        return State(arrays, self._position()).having(optimizer=self._optimizer_state(optimizer, self._model.to_layout))

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self.copy_from(state.arrays["parameters"])
        self.load_statistics(state.arrays["statistics"])
        self._go_on(state)
        optimizer = self._optimizer_state(state.part("optimizer"), self._model.from_layout)
        with self.compute_device.in_order():
            self._optimizer.restore(optimizer, self.compute_device.device)

    @staticmethod
    def _optimizer_state(state: State, reorder: Callable[[Tensor, Tensor], None]) -> State:
        """Reorder the vectors `[d]` of an optimizer; checkpoints have the order of the layout on every device."""
        arrays = {name: np.empty_like(values) for name, values in state.arrays.items()}
        for name, values in state.arrays.items():
            reorder(readable(values), torch.from_numpy(arrays[name]))
        return State(arrays, state.facts)

    def copy_to(self, out: Vector) -> None:
        """Copy the live model into `out`, `[d]`."""
        with self.compute_device.in_order():
            self._model.to_host(self._model.parameters, out)

    def copy_from(self, values: Vector) -> None:
        """Overwrite the live model with `values`, `[d]`."""
        with self.compute_device.in_order():
            self._model.from_host(values, self._model.parameters)

    def train(
        self,
        steps: int,
        *,
        anchor: Vector | None = None,
        pull: float = 0.0,
        epoch: int | None = None,
        relabel: Relabel | None = None,
    ) -> Progress:
        """Take optimizer steps on the next batches."""
        with self.compute_device.in_order():
            centre = None
            if pull:
                assert anchor is not None, "a proximal step needs an anchor"
                centre = torch.empty_like(self._model.parameters)
                self._model.from_host(anchor, centre)
            return self._run(steps, self._gradient, lambda: self._step(centre, pull, epoch), relabel)

    def observe(self, steps: int) -> Progress:
        """Run the next batches forward, without optimizer steps.

        Validators in ZenoPS also run backward and discard the gradients. That does not affect the result.
        """
        with self.compute_device.in_order():
            return self._run(steps, self._forward, lambda: None)

    def _step(self, centre: Tensor | None, pull: float, epoch: int | None) -> None:
        rate = self._rate(epoch)
        with torch.no_grad():
            self._optimizer.step(self._model.parameters, self._model.gradient, rate)
            if centre is not None:
                self._model.parameters.lerp_(centre, pull)

    def _run(self, steps: int, over: Step, act: Callable[[], None], relabel: Relabel | None = None) -> Progress:
        self._model.network.train()
        outputs: list[Tensor] = []
        labels: list[Tensor] = []
        losses: list[Tensor] = []
        for _ in range(steps):
            images, targets = self._model.batch(*self._next_batch(relabel))
            self.compute_device.seed(self._step_seed(self._steps_done))
            outputs.append(over(images, targets))
            if self._model.has_own_loss:
                # The network's own loss may differ after the step, or for all batches together.
                with torch.no_grad():
                    losses.append(self._model.summed_loss(outputs[-1], targets))
            act()
            self._steps_done += 1
            labels.append(targets)
        # Count once for all steps, because each count waits for the GPU.
        counts = Counts()
        if outputs:
            together = torch.cat(outputs), torch.cat(labels)
            count(counts, *together, torch.stack(losses).sum() if losses else self._model.summed_loss(*together))
        return Progress(steps, counts.samples, counts.mean_loss, counts.correct)

    def loss_on(self, number: int) -> Callable[[Vector], float]:
        """Return a function that computes the loss of models on one batch."""
        model, batch = self._model, self._stream.draw(number)

        def loss(values: Vector) -> float:
            with self.compute_device.in_order():
                images, labels = model.batch(*batch)
                live, counts = model.parameters.clone(), Counts()
                try:
                    model.from_host(values, model.parameters)
                    model.network.eval()
                    with torch.inference_mode():
                        outputs = model.network(images)
                        count(counts, outputs, labels, model.summed_loss(outputs, labels))
                finally:
                    model.parameters.copy_(live)
            return counts.mean_loss

        return loss

    @property
    def evaluator(self) -> TorchEvaluator:
        """Evaluates models in the background; created at the first call."""
        if self._evaluator is None:
            with self.compute_device.in_order():
                twin = self._model.twin()
            self._evaluator = TorchEvaluator(twin, self._test_set, self._stream.sweep)
        return self._evaluator

    def evaluate(self) -> Evaluation:
        """Evaluate the current model on the test set."""
        with self.compute_device.in_order():
            return self._test_set.evaluate(self._model)

    @property
    def statistics(self) -> Vector:
        """A copy of the running means and variances, `[k]`."""
        with self.compute_device.in_order():
            values: Vector = self._model.running_statistics().cpu().numpy()
        return values

    def load_statistics(self, values: Vector) -> None:
        """Overwrite the running statistics with `values`, `[k]`."""
        with self.compute_device.in_order():
            self._model.load_statistics(readable(values))

    def reestimate_statistics(self) -> None:
        """Replace the running statistics by their averages over one pass of the shard."""
        with self.compute_device.in_order():
            reestimate_statistics(self._model, self._stream.sweep())
