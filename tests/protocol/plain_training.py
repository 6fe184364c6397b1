"""What one process does by itself: local steps with an ordinary torch optimizer, and the test of a model."""

import copy
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from opened import Opened, shard_indices
from plain_rules import Array
from torch.nn import functional

from hpcps import seeds
from hpcps.data.batches import BatchStream, Normaliser
from hpcps.spec.schema import Run

Blocks = list[Array]


class Trainer:
    """A network, an optimizer over its tensors, and the batches of one shard."""

    def __init__(self, run: Run, data: Opened, role: str, index: int, shard: int, start: Blocks) -> None:
        samples = data.train.read(shard_indices(run, shard, data.train.labels))
        self.normalise = Normaliser(data.facts)
        self.stream = BatchStream(
            samples,
            run.train.batch_size,
            self.normalise,
            partial(seeds.generator, run.seed, role, index),
            augment=bool(run.data.augment),
        )
        self.train = run.train
        self.classes = data.facts.classes
        self.steps_per_epoch = run.train.passes_per_epoch * (len(samples) // run.train.batch_size)
        self.steps = 0
        self.seen: list[tuple[float, float]] = []
        self.network = run.model.build(data.facts.shape, data.facts.classes)
        # Convolutions follow their kernels; sums in another order would be other sums.
        self.network.to(memory_format=getattr(torch, run.model.memory_format("cpu")))
        self.write(start)
        keys, parameters = run.train.optimizer, self.network.parameters()
        self.optimizer: torch.optim.Optimizer
        if keys.name == "adam":
            self.optimizer = torch.optim.Adam(parameters, keys.lr, keys.betas, weight_decay=keys.weight_decay)
        else:
            self.optimizer = torch.optim.SGD(
                parameters, keys.lr, keys.momentum, weight_decay=keys.weight_decay, nesterov=keys.name == "nag"
            )

    def read(self) -> Blocks:
        return [tensor.detach().numpy().copy() for tensor in self.network.parameters()]

    def write(self, values: Blocks) -> None:
        put(self.network, values)

    def learning_rate(self) -> float:
        epoch, keys = self.steps // self.steps_per_epoch, self.train
        rate = keys.optimizer.lr
        for decay in keys.lr_decay.epochs:
            if epoch >= decay:
                rate *= keys.lr_decay.factor
        rising = keys.warmup.epochs * self.steps_per_epoch
        if self.steps < rising:
            rate *= keys.warmup.start + (1 - keys.warmup.start) * self.steps / rising
        return rate

    def step(self, *, move: bool, flip: bool = False) -> None:
        """Run forward and backward on the next batch, with its labels flipped if `flip`, and take a step if `move`."""
        images, labels = (torch.from_numpy(array) for array in next(self.stream))
        if flip:
            labels = self.classes - 1 - labels
        self.network.train()
        outputs = self.network(images)
        loss = functional.cross_entropy(outputs, labels)
        self.optimizer.zero_grad()
        loss.backward()
        if move:
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate()
            self.optimizer.step()
        self.seen.append((loss.item(), right(outputs, labels)))
        self.steps += 1

    def progress(self) -> tuple[float, float]:
        """Return mean loss and accuracy over the steps since the last call."""
        loss, accuracy = np.mean(self.seen, axis=0)
        self.seen = []
        return float(loss), float(accuracy)


def put(network: torch.nn.Module, values: Blocks) -> None:
    with torch.no_grad():
        for tensor, value in zip(network.parameters(), values, strict=True):
            tensor.copy_(torch.from_numpy(value))


def right(outputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of labels found; where outputs are not finite, none is."""
    return ((outputs.argmax(1) == labels) & outputs.isfinite().all(1)).double().mean().item()


def norms(network: torch.nn.Module) -> list[torch.nn.BatchNorm2d]:
    return [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]


def evaluate(
    run: Run, data: Opened, evaluator: Trainer, workers: Sequence[Trainer], values: Blocks
) -> tuple[float, float]:
    """Test `values` with the BatchNorm statistics that the run asks for: (mean loss, accuracy)."""
    network = copy.deepcopy(evaluator.network)
    put(network, values)
    if run.validation.batchnorm == "averaged":
        for number, norm in enumerate(norms(network)):
            theirs = [norms(worker.network)[number] for worker in workers]
            norm.running_mean = torch.stack([one.running_mean for one in theirs]).mean(0)
            norm.running_var = torch.stack([one.running_var for one in theirs]).mean(0)
    elif run.validation.batchnorm == "reestimated" and norms(network):
        for norm in norms(network):
            norm.reset_running_stats()
            norm.momentum = None  # cumulative
        network.train()
        with torch.no_grad():
            for images, _ in evaluator.stream.sweep():
                network(torch.from_numpy(images))
    samples = data.read_test(run.data.test_limit)
    images, labels = torch.from_numpy(evaluator.normalise(samples.images)), torch.from_numpy(samples.labels)
    network.eval()
    with torch.no_grad():
        outputs = network(images)
    return functional.cross_entropy(outputs, labels).item(), right(outputs, labels)
