"""The trainer in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from hpcps.data.base import Facts
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.registry.failures import fault
from hpcps.training.evaluation import Counts, Progress
from hpcps.training.pytorch.device import compute_device, prepare_device
from hpcps.training.pytorch.evaluator import TorchEvaluator, TorchNetwork, count
from hpcps.training.pytorch.flat import TorchFlatModel, readable
from hpcps.training.pytorch.network import build_network
from hpcps.training.pytorch.optimizers import build_optimizer
from hpcps.training.pytorch.step import Step
from hpcps.training.trainer import Relabel, Trainer


class TorchTrainer(TorchNetwork, Trainer):
    """Trains one network on one shard.

    Attributes:
        compute_device: the device, and the order of work on it.
    """

    def _build(self, model: Model, facts: Facts, weights: np.random.Generator) -> None:
        self.compute_device = compute_device(prepare_device(self._train))
        last = model.memory_format(self.compute_device.device.type) == "channels_last"
        with self.compute_device.in_order():
            network = build_network(model, facts, self.compute_device.device)
            self._model = TorchFlatModel(network, self.compute_device, channels_last=last)
            self._model.draw_weights(weights)
        self._forward = Step(self._model, self._train.batch_size, backward=False)
        self._gradient = Step(self._model, self._train.batch_size, backward=True)
        matrices = self._model.hidden_matrices()
        if self._train.optimizer.name == "muon" and not matrices:
            raise fault(
                model,
                'train.optimizer.name = "muon" is for the matrices of hidden layers, and its network has none: use '
                '"adamw"',
            )
        self._optimizer = build_optimizer(self._train.optimizer, matrices)
        self._sweep = self._stream.sweep
        self._evaluator: TorchEvaluator | None = None

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def device(self) -> str:
        return str(self.compute_device.device)

    def _optimizer_state(self) -> State:
        with self.compute_device.in_order():
            state = self._optimizer.state()
        return _reordered(state, self._model.to_layout)

    def _restore_optimizer(self, state: State) -> None:
        state = _reordered(state, self._model.from_layout)
        with self.compute_device.in_order():
            self._optimizer.restore(state, self.compute_device.device)

    def copy_to(self, out: Vector) -> None:
        with self.compute_device.in_order():
            self._model.to_host(self._model.parameters, out)

    def _in_order(self) -> AbstractContextManager[object]:
        return self.compute_device.in_order()

    def _on_device(self, values: Vector) -> Tensor:
        out = torch.empty_like(self._model.parameters)
        self._model.from_host(values, out)
        return out

    def _step(self, rate: float, centre: Tensor | None, pull: float) -> None:
        with torch.no_grad():
            self._optimizer.step(self._model.parameters, self._model.gradient, rate)
            if centre is not None:
                self._model.parameters.lerp_(centre, pull)

    def _run(self, steps: int, act: Callable[[], None] | None, relabel: Relabel | None = None) -> Progress:
        # Validators in ZenoPS run backward and discard the gradients. That does not affect the result.
        over = self._forward if act is None else self._gradient
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
            if act is not None:
                act()
            self._steps_done += 1
            labels.append(targets)
        # Count once for all steps, because each count waits for the GPU.
        counts = Counts()
        if outputs:
            together = torch.cat(outputs), torch.cat(labels)
            count(counts, *together, torch.stack(losses).sum() if losses else self._model.summed_loss(*together))
        return counts.progress(steps)

    def loss_on(self, number: int) -> Callable[[Vector], float]:
        model, batch = self._model, self._stream.draw(number)

        def loss(values: Vector) -> float:
            with self.compute_device.in_order():
                live, counts = model.parameters.clone(), Counts()
                try:
                    model.from_host(values, model.parameters)
                    model.network.eval()
                    with torch.inference_mode():
                        self._classify(*batch, counts)
                finally:
                    model.parameters.copy_(live)
            return counts.mean_loss

        return loss

    @property
    def evaluator(self) -> TorchEvaluator:
        if self._evaluator is None:
            with self.compute_device.in_order():
                twin = self._model.twin()
            self._evaluator = TorchEvaluator(twin, self._test_set, self._sweep)
        return self._evaluator

    @property
    def statistics(self) -> Vector:
        with self.compute_device.in_order():
            values: Vector = self._model.running_statistics().cpu().numpy()
        return values


def _reordered(state: State, reorder: Callable[[Tensor, Tensor], None]) -> State:
    """Reorder the vectors `[d]` of an optimizer; checkpoints have the order of the layout on every device."""
    arrays = {name: np.empty_like(values) for name, values in state.arrays.items()}
    for name, values in state.arrays.items():
        reorder(readable(values), torch.from_numpy(arrays[name]))
    return State(arrays, state.facts)
