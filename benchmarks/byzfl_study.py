"""The study of `byzfl_benchmark.py`: its cells, and what ByzFL and hpcps are given for a training of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import hpcps
from hpcps.attacks.base import attackers
from hpcps.data.batches import Normaliser
from hpcps.data.parts import open_parts
from hpcps.data.samples import Samples
from hpcps.data.shards import all_shards, held_out_samples, shard_size
from hpcps.data.statistics import normalised_facts
from hpcps.errors import SpecError

HONEST = 10
BYZANTINE = (1, 2, 3, 4)
GAMMAS = (1.0, 0.66, 0.33, 0.0)
"""Degrees of heterogeneity: the share of a shard that is a uniform sample."""
RULES = ("trimmed_mean", "geometric_median")
ATTACKS = ("ipm", "searched_ipm", "searched_alie")
SEEDS = (1, 2, 3)
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""The learning rates to choose from, in ByzFL's definition."""
SEARCHED_F, SEARCHED_GAMMA, SEARCH_SEED = 2, 0.33, 0
"""The setting in which a rate is chosen; no cell has its seed."""

BATCH, MOMENTUM, WEIGHT_DECAY = 25, 0.9, 1e-4
RADIUS, NU, STEPS_OF_WEISZFELD = 2.0, 0.1, 3
"""ByzFL's radius of clipping, and its smoothing and number of steps of the geometric median."""
HOLDOUT = 0.2
"""Share of the training samples on which the rates are compared; no cell uses it."""

CELLS = len(RULES) * len(BYZANTINE) * len(GAMMAS) * len(ATTACKS)
"""The trainings of a seed."""

Side = Literal["byzfl", "hpcps"]
SIDES: tuple[Side, ...] = ("byzfl", "hpcps")
NAMES: dict[Side, str] = {"byzfl": "ByzFL", "hpcps": "hpcps"}
MODELS = {"digits": "mlp", "mnist": "lenet", "cifar10": "cnn"}
"""The data sets, and the network of each; none has BatchNorm."""
SPLIT = Path(__file__).with_name("byzfl_split.py")

BYZFL_ATTACKS = {
    "ipm": "SignFlipping",
    "searched_ipm": "Optimal_InnerProductManipulation",
    "searched_alie": "Optimal_ALittleIsEnough",
}
BYZFL_RULES = {"trimmed_mean": "TrMean", "geometric_median": "GeometricMedian"}


@dataclass(frozen=True, order=True)
class Cell:
    """One training, by both libraries.

    Attributes:
        seed: the seed of weights, split and batches.
        rule: the name of the rule in hpcps.
        f: the number of Byzantine workers, besides `HONEST`.
        gamma: the share of a shard that is a uniform sample.
        attack: the name of the attack in hpcps.
        rate: the learning rate, in ByzFL's definition.
        search: whether it is for the choice of the rate, and evaluated on the held-out samples.
    """

    seed: int
    rule: str
    f: int
    gamma: float
    attack: str
    rate: float
    search: bool = False

    @property
    def label(self) -> str:
        setting = f"{self.rule}, f = {self.f}, gamma = {self.gamma:g}, {self.attack}, seed {self.seed}"
        return f"rate {self.rate:g}: {setting}" if self.search else setting


@dataclass(frozen=True)
class Settings:
    """What all trainings of a study have in common; results of different settings are never mixed.

    Attributes:
        data: the data set.
        steps: the steps of each training; all steps are rounds.
        limit: the training samples in use; None: all.
        batch: the samples of a step of a worker.
        folder: the folder of the data set's files; None: `$HPCPS_DATA`.
    """

    data: str = "digits"
    steps: int = 240
    limit: int | None = None
    batch: int = BATCH
    folder: str | None = field(default=None, compare=False)

    def record(self) -> dict[str, Any]:
        """Return what identifies the settings, for a file of results."""
        return {key: value for key, value in asdict(self).items() if key != "folder"}

    def experiment(self, cell: Cell) -> dict[str, Any]:
        """Return the experiment of hpcps; its one epoch has the steps of the study.

        An update of hpcps is a step, -rate * momentum, where ByzFL sends the momentum alone, in which a gradient has
        the factor 1 - 0.9. So the rate of the local optimizer is smaller by this factor, and lengths that ByzFL
        compares with momenta (the radius, nu) are multiplied by its rate.

        Raises:
            SpecError: no number of passes over a shard has that many steps, or the experiment is wrong.
            DataError: files of the data set are missing.
        """
        workers = HONEST + cell.f
        attack: dict[str, Any] = {"kind": cell.attack, "scope": "worker", "rate": (cell.f + 0.5) / workers}
        attack |= {"epsilon": 1.0} if cell.attack == "ipm" else {}
        fixed = attackers(hpcps.registry.attacks[cell.attack](**attack), workers, cell.seed)
        rule: dict[str, Any] = {"kind": cell.rule, "f": cell.f}
        if cell.rule == "geometric_median":
            rule = {"kind": cell.rule, "smoothing": NU * cell.rate, "iterations": STEPS_OF_WEISZFELD, "tolerance": 0.0}
        rule["before"] = [{"kind": "clipping", "radius": RADIUS * cell.rate}, {"kind": "nnm", "f": cell.f}]
        data: dict[str, Any] = {
            "name": self.data,
            "shards": HONEST + max(BYZANTINE),  # so that an epoch does not depend on f
            "split": {"kind": "honest_gamma", "gamma": cell.gamma, "honest": sorted({*range(workers)} - fixed)},
            "holdout": HOLDOUT if cell.search else 0.0,
        }
        # Otherwise all shards are those of workers.
        data |= {"validation_split": "as_workers"} if cell.f < max(BYZANTINE) else {}
        data |= {"limit": self.limit} if self.limit else {}
        data |= {"dir": self.folder} if self.folder else {}
        data |= {"augment": False} if self.data == "cifar10" else {}
        optimizer = {
            "name": "sgd",
            "lr": cell.rate * (1 - MOMENTUM),
            "momentum": MOMENTUM,
            "weight_decay": WEIGHT_DECAY,
        }
        described: dict[str, Any] = {
            "name": "byzfl_benchmark",
            "plugins": [str(SPLIT)],
            "seed": cell.seed,
            "topology": {"servers": 1, "validators": 0, "workers": workers},
            "transport": {"kind": "inproc"},
            "model": {"name": MODELS[self.data]},
            "data": data,
            "train": {"epochs": 1, "batch_size": self.batch, "local_steps": 1, "optimizer": optimizer},
            "attack": attack,
            "validation": {"rule": rule},
        }
        batches = shard_size(hpcps.load(described).points[0].run.data, self.batch) // self.batch
        if self.steps % batches:
            shard = "shard of the search" if cell.search else "shard"
            raise SpecError(f"a pass over a {shard} has {batches} steps, and --steps {self.steps} is no multiple of it")
        described["train"]["passes_per_epoch"] = self.steps // batches
        return described

    def request(self, cell: Cell, experiment: hpcps.Experiment, folder: Path) -> dict[str, Any]:
        """Write what ByzFL trains with into a folder, and return the request for `peers/byzfl_training.py`.

        The network has the initial weights of hpcps, and the clients have the shards of its honest workers.
        """
        import torch

        point = experiment.points[0]
        run, learner = point.run, hpcps.Learner.of(point, 0)
        network = run.model.build(run.data.input_facts.shape, run.data.facts.classes)
        parameters = dict(network.named_parameters())
        assert not [*network.buffers()], f"{run.model.name} has BatchNorm, whose statistics ByzFL treats differently"
        assert [*parameters] == [block.name for block in learner.layout.blocks], "the two flatten models differently"
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.from_numpy(learner.model), [*parameters.values()])
        torch.save(network, folder / "network.pt")
        np.savez(folder / "data.npz", **samples_of(run, self.honest(experiment)))
        known = {"name": BYZFL_RULES[cell.rule], "parameters": {"f": cell.f, "nu": NU, "T": STEPS_OF_WEISZFELD}}
        before = [{"name": "Clipping", "parameters": {"c": RADIUS}}, {"name": "NNM", "parameters": {"f": cell.f}}]
        return {
            "data": str(folder / "data.npz"),
            "network": str(folder / "network.pt"),
            "steps": self.steps,
            "batch_size": self.batch,
            "learning_rate": cell.rate,
            "momentum": MOMENTUM,
            "weight_decay": WEIGHT_DECAY,
            "seed": cell.seed,
            "f": cell.f,
            "attack": {"name": BYZFL_ATTACKS[cell.attack], "parameters": {}},
            "aggregator": known,
            "pre_aggregators": before,
        }

    @staticmethod
    def honest(experiment: hpcps.Experiment) -> tuple[int, ...]:
        """Return the honest workers of a run."""
        run = experiment.points[0].run
        return tuple(sorted({*range(run.topology.workers)} - attackers(run.attack, run.topology.workers, run.seed)))


def samples_of(run: Any, honest: Iterable[int]) -> Mapping[str, Any]:
    """Return the arrays of `data` of `peers/byzfl_training.py`: the samples as the network gets them."""
    data = run.data
    train, test = open_parts(data)
    normalise = Normaliser(normalised_facts(data, train), data.resize)
    shards = all_shards(
        data,
        shard_size(data, run.largest_batch),
        run.seed,
        train.labels,
        held_out=run.holds_out,
        least=run.largest_batch,
    )

    def given(prefix: str, samples: Samples) -> Mapping[str, Any]:
        return {f"{prefix}samples": normalise(samples.images), f"{prefix}labels": samples.labels.astype(np.int64)}

    tested = train.read(held_out_samples(data, run.seed)) if data.holdout else data.read_test(test)
    clients = {f"client_{number}": shards[worker] for number, worker in enumerate(honest)}
    return {**given("", train.read(np.arange(data.limited_size))), **given("test_", tested), **clients}


def searched_cells() -> Iterator[Cell]:
    """Yield the trainings by which rates are chosen, rule by rule."""
    for rule, rate, attack in itertools.product(RULES, RATES, ATTACKS):
        yield Cell(SEARCH_SEED, rule, SEARCHED_F, SEARCHED_GAMMA, attack, rate, search=True)


def cells(rates: Mapping[str, float], seeds: Iterable[int]) -> Iterator[Cell]:
    """Yield the trainings of the benchmark, all of a seed before those of the next one.

    Args:
        rates: the chosen rate of each rule.
        seeds: the seeds.
    """
    for seed, rule, f, gamma, attack in itertools.product(seeds, RULES, BYZANTINE, GAMMAS, ATTACKS):
        yield Cell(seed, rule, f, gamma, attack, rates[rule])
