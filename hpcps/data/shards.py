"""The equal shards of the training samples: one for each worker, and the last one for the validators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcps import seeds
from hpcps.data.base import Data
from hpcps.data.parts import open_parts
from hpcps.data.samples import Indices, Labels
from hpcps.data.splits import Dealing
from hpcps.errors import DataError, SpecError
from hpcps.registry.failures import fault, told


def shard_count(data: Data) -> int:
    """Return the number of shards."""
    assert data.shards is not None  # a resolved run has it
    return data.shards


def shard_size(data: Data, batch_size: int) -> int:
    """Return the number of samples of each shard; the last `training_size mod shards` samples are left out.

    Raises:
        SpecError: a shard does not fill one batch.
    """
    shards, samples = shard_count(data), data.training_size
    size = samples // shards
    if size < batch_size:
        raise SpecError(
            f"a shard of {data.name} has {size} samples ({samples} in {shards} shards), fewer than a batch of "
            f"{batch_size}: use a smaller train.batch_size, fewer data.shards or a larger data.limit"
        )
    return size


def shard_of(data: Data, role: str, index: int) -> int:
    """Return the shard that a role trains on: worker k on shard k, every validator on the last."""
    return index if role == "worker" else shard_count(data) - 1


def all_shards(data: Data, size: int, seed: int, labels: Callable[[], Labels], *, held_out: bool) -> Indices:
    """Return the indices of the samples of all shards in file order, `[shards, size]`.

    Args:
        data: its keys and the seed determine the shards, so that every role computes the same ones.
        size: the number of samples of a shard.
        seed: the run's seed.
        labels: reads all training labels; only called for splits that use them.
        held_out: whether the last shard is drawn first, as a uniform sample of all samples in use. So the validators'
            shard has the distribution of the whole set, however uneven the workers' shards are.

    Raises:
        SpecError: the split failed, or did not return shards of existing, different samples.
    """
    count = shard_count(data)
    if data.split.alike:
        return _dealt(data, np.empty(0, np.int64), count, size, seed)
    used = labels()[: data.training_size]
    if not held_out:
        return _dealt(data, used, count, size, seed)
    order = seeds.generator(seed, "experiment", 0, "held-out shard").permutation(len(used))
    rest = np.sort(order[size:])
    return np.vstack([rest[_dealt(data, used[rest], count - 1, size, seed)], np.sort(order[:size])])


def _dealt(data: Data, labels: Labels, shards: int, size: int, seed: int) -> Indices:
    random = seeds.generator(seed, "experiment", 0, "split")
    with told(data.split, "its deal() failed"):
        places = data.split.deal(Dealing(labels, shards, size, random, data.alpha))
    samples = data.training_size if data.split.alike else len(labels)
    shape = getattr(places, "shape", None)
    if shape != (shards, size) or places.dtype.kind not in "iu" or len(np.unique(places)) != places.size:
        returned = f"an array {list(shape)}" if isinstance(shape, tuple) else f"a {type(places).__name__}"
        raise fault(
            data.split,
            f"its deal() returned {returned}, or places twice: it must return an array [{shards}, {size}] of whole "
            "numbers, none of them twice: the places of the samples of each shard",
        )
    if places.size and (places.min() < 0 or places.max() >= samples):
        raise fault(
            data.split,
            f"its deal() returned places from {places.min()} to {places.max()}: they must be from 0 to {samples - 1}",
        )
    return places.astype(np.int64, copy=False)


def classes_of_shards(data: Data, size: int, seed: int, *, held_out: bool) -> NDArray[np.int64] | None:
    """Return the number of classes in each shard, `[shards]`; None if the files of the data set are missing."""
    # Most points of a sweep have the same shards; a split whose shards are alike does not use the seed.
    key = type(data), data.model_dump_json(), size, held_out, None if data.split.alike else seed
    if key not in _counted:
        try:
            labels = _labels(data)
        except DataError:
            return None
        shards = all_shards(data, size, seed, lambda: labels, held_out=held_out)
        _counted[key] = np.array([len(np.unique(labels[shard])) for shard in shards])
    return _counted[key]


_counted: dict[tuple[object, ...], NDArray[np.int64]] = {}


def _labels(data: Data) -> Labels:
    """Return the labels of all training samples, read once for all points of a sweep."""
    key = type(data), data.model_dump_json(exclude=set(Data.model_fields) - {"name", "dir"})
    if key not in _known:
        _known[key] = open_parts(data)[0].labels()
    return _known[key]


_known: dict[tuple[type[Data], str], Labels] = {}
