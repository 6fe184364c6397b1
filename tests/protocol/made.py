"""What a run made: the local steps and the updates of each role, which a transcription of the protocol starts from.

One rounding in a local step can switch a unit on or off, so two implementations of training part sooner or later. The
protocol around the steps has no such freedom: from the same local steps, both must have the same bits.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from opened import Opened
from plain_rules import Array
from plain_training import Blocks, Trainer, norms

from hpcps.roles.update.packer import Packer
from hpcps.spec.schema import Run
from hpcps.training import build
from hpcps.training.evaluation import Progress


@dataclass(frozen=True)
class Steps:
    """Some local steps of a role: the model before and after them, the statistics after them, and their results."""

    before: Array
    after: Array
    statistics: Array
    progress: Progress
    flips: bool  # labels


@dataclass
class Made:
    """Local steps by role and index, and then by the number of steps that are done; sent blocks by worker and round.

    With `trains`, each local step is also done by plain training from the same model, and must give nearly the same.
    """

    trains: bool = False
    steps: dict[tuple[str, int], dict[int, Steps]] = field(default_factory=lambda: defaultdict(dict))
    sent: dict[int, list[tuple[Any, Array] | None]] = field(default_factory=lambda: defaultdict(list))


class Recorded:
    """A trainer of the run, of which the local steps are recorded."""

    def __init__(self, trainer: Any, made: dict[int, Steps]) -> None:
        self._trainer, self._made = trainer, made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def _model(self) -> Array:
        values = np.empty(self._trainer.layout.size, np.float32)
        self._trainer.copy_to(values)
        return values

    def _record(self, method: str, steps: int, keys: dict[str, Any]) -> Progress:
        before, labels = self._model(), np.arange(2)
        relabel = keys.get("relabel")
        progress: Progress = getattr(self._trainer, method)(steps, **keys)
        flips = relabel is not None and not np.array_equal(relabel(labels), labels)
        if steps:  # a round of one step that the overwritten first step has taken has none left
            record = Steps(before, self._model(), self._trainer.statistics.copy(), progress, flips)
            self._made[self._trainer.steps_done] = record
        return progress

    def train(self, steps: int, **keys: Any) -> Progress:
        """See `hpcps.training.trainer.Trainer`."""
        return self._record("train", steps, keys)

    def observe(self, steps: int) -> Progress:
        """See `hpcps.training.trainer.Trainer`."""
        return self._record("observe", steps, {})


def record(monkeypatch: pytest.MonkeyPatch, *, trains: bool = False) -> Made:
    """Record what the next run makes."""
    made, original, pack = Made(trains), build.build_trainer, Packer.pack

    def build_trainer(run: Run, role: str, index: int) -> Any:
        return Recorded(original(run, role, index), made.steps[role, index])

    def packed(packer: Packer, trainer: Any, *args: Any) -> Any:
        found = pack(packer, trainer, *args)
        (worker,) = (
            index for (role, index), steps in made.steps.items() if role == "worker" and steps is trainer._made
        )
        made.sent[worker].append((found.mask.copy(), found.payload.copy()) if found.parts else None)
        return found

    monkeypatch.setattr(build, "build_trainer", build_trainer)
    monkeypatch.setattr(Packer, "pack", packed)
    return made


class Replayed(Trainer):
    """A process whose local steps are those of the run."""

    def __init__(self, made: Made, run: Run, data: Opened, role: str, index: int, shard: int, start: Blocks) -> None:
        super().__init__(run, data, role, index, shard, start)
        self.name, self.made, self.trains = f"{role} {index}", made.steps[role, index], made.trains
        self.results: list[Progress] = []

    def step(self, *, move: bool, flip: bool = False, anchor: Blocks | None = None, pull: float = 0.0) -> None:
        """Do the next step of the run; the model before it must be the run's to the bit."""
        steps, where = self.made.get(self.steps + 1), f"{self.name}, step {self.steps + 1}"
        if steps is not None:
            assert same(self.vector(), steps.before), where
            assert steps.flips == flip, where
            assert move or same(steps.before, steps.after), where
        if self.trains:
            super().step(move=move, flip=flip)
            if move and anchor is not None and pull:
                self.write([x + np.float32(pull) * (y - x) for x, y in zip(self.read(), anchor, strict=True)])
            assert steps is not None, f"{where}: one step is compared at a time"
            self.compare(steps, where)
        else:
            self.steps += 1
        if steps is None:  # the run has done several steps at once
            return
        with torch.no_grad():
            parameters = [*self.network.parameters()]
            for tensor, values in zip(parameters, split(steps.after, parameters), strict=True):
                tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))
            tensors = [tensor for norm in norms(self.network) for tensor in (norm.running_mean, norm.running_var)]
            for tensor, values in zip(tensors, split(steps.statistics, tensors), strict=True):
                tensor.copy_(torch.from_numpy(values))
        self.results.append(steps.progress)

    def compare(self, steps: Steps, where: str) -> None:
        """Compare a step of plain training with that of the run, from the same model."""
        ((loss, accuracy),), self.seen = self.seen, []
        loss = loss if np.isfinite(loss) else np.inf
        assert (steps.progress.loss, steps.progress.accuracy) == pytest.approx((loss, accuracy), rel=1e-5), where
        np.testing.assert_allclose(self.vector(), steps.after, rtol=1e-5, atol=1e-6, err_msg=where)
        found = [values.numpy() for norm in norms(self.network) for values in (norm.running_mean, norm.running_var)]
        np.testing.assert_allclose(np.concatenate([np.zeros(0), *found]), steps.statistics, rtol=1e-5, atol=1e-6)

    def vector(self) -> Array:
        """Return the model, `[d]`."""
        return np.concatenate([block.ravel() for block in self.read()])

    def progress(self) -> tuple[float, float]:
        """See `Trainer.progress`."""
        results, self.results = self.results, []
        loss = np.average([each.loss for each in results], weights=[each.samples for each in results])
        return float(loss), sum(each.correct for each in results) / sum(each.samples for each in results)


def split(values: Array, tensors: list[Any]) -> list[Array]:
    """Return the pieces of a vector that are as large as some tensors."""
    return np.split(values, np.cumsum([tensor.numel() for tensor in tensors])[:-1]) if tensors else []


def same(one: Array, other: Array) -> bool:
    """Tell whether two arrays have the same bits."""
    return one.shape == other.shape and one.tobytes() == other.tobytes()
