"""The cut of the training samples into equal shards, one per worker and one held out for the validators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcps import seeds
from hpcps.errors import SpecError
from hpcps.spec.schema import Data, Run
from hpcps.training.catalogue import DATA_SETS
from hpcps.training.data.samples import Indices, Labels


def shard_count(run: Run) -> int:
    """Return the number of shards."""
    assert run.data.shards is not None  # a resolved run has it
    return run.data.shards


def shard_size(run: Run) -> int:
    """Return the number of samples of each shard; the last `training_size mod shards` samples are left out.

    Raises:
        SpecError: a shard does not fill one batch.
    """
    shards, samples, batch = shard_count(run), training_size(run.data), run.train.batch_size
    size = samples // shards
    if size < batch:
        raise SpecError(
            f"a shard of {run.data.name} has {size} samples ({samples} in {shards} shards), fewer than a batch of "
            f"{batch}: use a smaller train.batch_size, fewer data.shards or a larger data.limit"
        )
    return size


def steps_per_epoch(run: Run) -> int:
    """Return the number of steps of an epoch, full batches only: the same for every role, known without a file."""
    return run.train.passes_per_epoch * (shard_size(run) // run.train.batch_size)


def training_size(data: Data) -> int:
    """Return the number of training samples in use."""
    available = DATA_SETS[data.name].train
    return min(available, data.limit or available)


def shard_of(run: Run, role: str, index: int) -> int:
    """Return which shard a role trains on: worker k on shard k, every validator on the last."""
    return index if role == "worker" else shard_count(run) - 1


def shard_indices(run: Run, shard: int, labels: Callable[[], Labels]) -> Indices:
    """Return where the samples of one shard are, `[shard_size(run)]`, counted in file order.

    Args:
        run: its data table and seed decide the cut, so that every role finds the same.
        shard: which of the `shard_count(run)` shards.
        labels: reads all training labels; only called by the splits that look at them.
    """
    size, count = shard_size(run), shard_count(run)
    if run.data.split == "iid":
        return np.arange(shard * size, (shard + 1) * size, dtype=np.int64)
    used = labels()[: training_size(run.data)]
    if run.data.split == "by_class":
        by_class: Indices = np.argsort(used, kind="stable")[shard * size : (shard + 1) * size]
        return by_class
    generator = seeds.generator(run.seed, "experiment", 0, "split")
    dealt: Indices = dirichlet(used, count, run.data.alpha, generator)[shard]
    return dealt


def dirichlet(labels: Labels, shards: int, alpha: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Deal samples to equal shards of uneven class mixtures.

    Each shard draws its class probabilities from a Dirichlet distribution around those of the whole set, then its
    samples by them, without replacement; a class that has run out is left out of later draws. (Hsu, Qi, Brown,
    "Measuring the effects of non-identical data distribution for federated visual classification", 2019, section 3.)

    Args:
        labels: `[n]`.
        shards: the number of shards.
        alpha: the concentration; towards 0 a shard has one class, towards infinity all mixtures are alike.
        generator: draws mixtures, counts and samples.

    Returns:
        The places of the samples, `[shards, n // shards]`, sorted within a shard; none occurs twice.
    """
    size = len(labels) // shards
    classes, counts = np.unique(labels, return_counts=True)
    waiting = [generator.permutation(np.flatnonzero(labels == label)) for label in classes]
    left = counts.copy()
    result = np.empty((shards, size), dtype=np.int64)
    for shard in range(shards):
        # A tiny alpha underflows to probability 0 in all classes but one, and that one may run out.
        mixture = np.maximum(generator.dirichlet(alpha * counts / len(labels) * len(classes)), 1e-12)
        taken = np.zeros_like(left)
        while (missing := size - int(taken.sum())) > 0:
            open_classes = mixture * (left > taken)
            taken += generator.multinomial(missing, open_classes / open_classes.sum())
            np.minimum(taken, left, out=taken)
        drawn = [waiting[c][left[c] - taken[c] : left[c]] for c in range(len(classes))]
        result[shard] = np.sort(np.concatenate(drawn))
        left -= taken
    return result
