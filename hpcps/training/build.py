"""Builds the trainer of one role from the resolved run."""

from __future__ import annotations

import gc
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hpcps import seeds
from hpcps.data.batches import BatchStream, Normaliser
from hpcps.data.parts import open_parts
from hpcps.data.shards import all_shards, held_out_samples, shard_of, shard_size
from hpcps.data.statistics import normalised_facts
from hpcps.errors import SpecError
from hpcps.spec.schema import Run
from hpcps.training.evaluation import TestSet
from hpcps.training.schedule import schedule_of
from hpcps.training.trainer import Trainer

if TYPE_CHECKING:
    from hpcps.training.mxnet.trainer import MxnetTrainer
    from hpcps.training.pytorch.trainer import TorchTrainer


def build_trainer(run: Run, role: str, index: int) -> Trainer:
    """Build the model, load the shard and start the random streams of a role.

    Every role of a run starts with the same weights. The test set, or the held-out share of the training samples, is
    read at the first evaluation.

    Args:
        run: the resolved run.
        role: `"worker"` (trains on shard `index`) or `"validator"` (on the last shard).
        index: the role's index.

    Raises:
        SpecError: a shard does not fill one batch, a component is not usable, or there is no GPU where one is asked
            for.
        DataError: a data file is missing, truncated or corrupt.
    """
    data = run.data
    train, test = open_parts(data)
    batch, size = run.batch_size(role, index), shard_size(data, run.largest_batch)
    shards = all_shards(data, size, run.seed, train.labels, held_out=run.holds_out, least=run.largest_batch)
    shard = train.read(shards[shard_of(data, role, index)])
    facts = normalised_facts(data, train)
    normalise = Normaliser(facts, data.resize)
    stream = BatchStream(
        shard,
        batch,
        normalise,
        partial(seeds.generator, run.seed, role, index),
        augment=bool(data.augment),
        batches_per_epoch=size // run.epoch_batch(role, index),
        unit=1 if run.shares_batches else None,
    )
    return trainer_of(run.model.backend, run.train.threads)(
        run.model,
        facts,
        schedule_of(run, role, index),
        stream,
        weights=seeds.generator(run.seed, "experiment", 0, "weights"),
        test_set=TestSet(
            lambda: (
                train.read(held_out_samples(data, run.seed)[: data.test_limit])
                if data.holdout
                else data.read_test(test)
            ),
            normalise,
        ),
        step_seed=seeds.numbered(run.seed, role, index, "steps"),
    )


def find_framework(backend: str) -> None:
    """Check that the framework of a backend is installed here, without loading it.

    Raises:
        SpecError: it is not installed.
    """
    if backend == "mxnet":
        from hpcps.training.mxnet.framework import find_mxnet

        find_mxnet()
    elif find_spec("torch") is None:
        raise SpecError(
            'model.backend = "torch", but torch is not installed here: install hpcps with its extra "torch"'
        )


def trainer_of(backend: str, threads: int) -> type[TorchTrainer] | type[MxnetTrainer]:
    """Load the framework of a backend and return its trainer.

    Raises:
        SpecError: the framework is not installed here.
    """
    if backend == "mxnet":
        from hpcps.training.mxnet.framework import load_mxnet

        load_mxnet(threads)
        from hpcps.training.mxnet.trainer import MxnetTrainer

        return MxnetTrainer
    find_framework(backend)
    # torch makes a million objects that stay: to search them for garbage takes a tenth of the time of its import.
    collecting = gc.isenabled()
    gc.disable()
    try:
        from hpcps.training.pytorch.trainer import TorchTrainer
    finally:
        if collecting:
            gc.enable()
    return TorchTrainer
