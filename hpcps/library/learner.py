"""One worker without servers: its model, its optimizer and its shard of the data, for a script or notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.data.base import Data
from hpcps.errors import SpecError
from hpcps.library.experiment import load
from hpcps.models import Model
from hpcps.numerics.arrays import as_numpy
from hpcps.numerics.layout import Layout, Vector
from hpcps.registry import Config
from hpcps.spec.point import Point
from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer, find_framework
from hpcps.training.evaluation import Evaluation, Progress


class Learner:
    """Trains a model on one shard of a data set, as a worker of a run does: `Learner("mlp", "digits").train(10)`.

    It wraps a trainer of a backend (`hpcps.training.trainer.Trainer`), which roles use.
    """

    def __init__(
        self,
        model: str | Mapping[str, Any] | Model,
        data: str | Mapping[str, Any] | Data,
        *,
        batch_size: int = 32,
        lr: float = 0.1,
        optimizer: str = "nag",
        shard: int = 0,
        shards: int = 1,
        seed: int = 1,
        train: Mapping[str, Any] | None = None,
        plugins: Sequence[str | Path] = (),
    ) -> None:
        """Build the model with its initial weights, and load the shard.

        Args:
            model: its name, its table (`{"name": "mlp"}`), or a component of the registry.
            data: the data set, likewise.
            batch_size: samples per step.
            lr: the learning rate.
            optimizer: `sgd`, `nag` or `adam`.
            shard: the shard to train on, from 0.
            shards: how many equal shards the training set has; learners of the same seed have disjoint shards.
            seed: the seed of weights, shards and batches; learners of the same seed begin with the same weights.
            plugins: files that define the model or the data set, such as `["my_model.py"]`, as in an experiment file.
            train: more keys of `[train]`, such as `{"device": "cpu"}`.

        Raises:
            SpecError: an argument is wrong; the message names the key of the experiment file that it stands for.
            DataError: a data file is missing or damaged.
        """
        described: dict[str, Any] = {
            "name": "learner",
            "plugins": [str(file) for file in plugins],
            "seed": seed,
            "topology": {"servers": 1, "validators": 0, "workers": shards},
            "transport": {"kind": "inproc"},
            "model": _table(model),
            "data": {"shards": shards} | _table(data),
            "train": {"epochs": 1, "batch_size": batch_size, "optimizer": {"name": optimizer, "lr": lr}}
            | dict(train or {}),
        }
        self._begin(load(described).points[0].run, shard)

    @classmethod
    def of(cls, point: Point, worker: int) -> Learner:
        """Return the learner of a worker of a run, with its shard, weights and batches.

        Args:
            point: the run, such as `hpcps.load("experiment.toml").points[0]`.
            worker: the index of the worker.
        """
        learner = cls.__new__(cls)
        learner._begin(point.run, worker)
        return learner

    def _begin(self, run: Run, worker: int) -> None:
        if worker not in range(run.topology.workers):
            raise SpecError(f"there is no worker or shard {worker}: they go from 0 to {run.topology.workers - 1}")
        self._run = run
        with self._prepared():
            self._trainer = build_trainer(run, "worker", worker)

    @property
    def layout(self) -> Layout:
        """The trainable tensors, in their order in the vector of the model."""
        return self._trainer.layout

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of elements of each trainable tensor: the argument `blocks` of rules."""
        return tuple(block.size for block in self.layout.blocks)

    @property
    def device(self) -> str:
        """Where it trains, such as `cpu` or `cuda:0`."""
        return self._trainer.device

    @property
    def steps(self) -> int:
        """The number of steps taken so far."""
        return self._trainer.steps_done

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of a pass over the shard, or of `passes_per_epoch` passes."""
        return self._trainer.steps_per_epoch

    @property
    def model(self) -> Vector:
        """A copy of the model, `[d]` float32; assign a vector to replace the model. The optimizer's state stays."""
        values: Vector = np.empty(self.layout.size, np.float32)
        self._trainer.copy_to(values)
        return values

    @model.setter
    def model(self, values: Any) -> None:
        vector = as_numpy(values, 1, "model")
        if vector.size != self.layout.size:
            raise ValueError(f"model has {vector.size} elements, not {self.layout.size}")
        self._trainer.copy_from(vector)

    def train(self, steps: int | None = None) -> Progress:
        """Take optimizer steps on the next batches of the shard.

        Args:
            steps: the number of steps; by default an epoch.

        Returns:
            `steps`, `samples`, and of these samples the mean `loss` and the `accuracy`, each before its step.

        Raises:
            ValueError: the number is negative.
        """
        if steps is not None and steps < 0:
            raise ValueError(f"steps must be a whole number from 0, not {steps}")
        with self._prepared():
            return self._trainer.train(self.steps_per_epoch if steps is None else steps)

    def evaluate(self) -> Evaluation:
        """Return the `accuracy` and the mean `loss` of the model on the whole test set."""
        with self._prepared():
            return self._trainer.evaluate()

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Make the settings of torch that results depend on, and put back those of the caller."""
        if self._run.model.backend != "torch":
            yield
            return
        find_framework("torch")
        from hpcps.training.pytorch.device import prepare_device, settings_kept

        with settings_kept():
            prepare_device(self._run.train)
            yield


def _table(component: str | Mapping[str, Any] | Config) -> dict[str, Any]:
    """Return the table of a component that is given by its name, its table or itself."""
    if isinstance(component, str):
        return {"name": component}
    return component.model_dump(mode="json", exclude_none=True) if isinstance(component, Config) else dict(component)
