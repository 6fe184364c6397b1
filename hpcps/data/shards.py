"""The shards of the training samples: one for each worker, and the last one for the validators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps import seeds
from hpcps.data.base import Data
from hpcps.data.parts import open_parts
from hpcps.data.samples import Indices, Labels
from hpcps.data.splits import Dealing
from hpcps.errors import DataError, SpecError
from hpcps.registry.failures import errors_of, fault


def shard_count(data: Data) -> int:
    """Return the number of shards."""
    assert data.shards is not None  # a resolved run has it
    return data.shards


def shard_size(data: Data, batch_size: int) -> int:
    """Return the number of samples of a shard; the last `training_size mod shards` samples are left out.

    Shards of splits that are not `equal` have as many on average. An epoch of every role has the batches of this many.

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


def held_out_samples(data: Data, seed: int) -> Indices:
    """Return the indices of the training samples that no shard has, in file order; none with `data.holdout = 0`."""
    order = seeds.generator(seed, "experiment", 0, "holdout").permutation(data.limited_size)
    return np.sort(order[: data.held_out_size])


def all_shards(
    data: Data, size: int, seed: int, labels: Callable[[], Labels], *, held_out: bool, least: int = 1
) -> tuple[Indices, ...]:
    """Return the indices of the samples of each shard in file order, `[size]`.

    Args:
        data: its keys and the seed determine the shards, so that every role computes the same ones.
        size: the number of samples of a shard; the average of splits that are not `equal`.
        seed: the run's seed.
        labels: reads all training labels; only called for splits that use them.
        held_out: whether the last shard is drawn first, as a uniform sample of all samples in use. So the validators'
            shard has the distribution of the whole set, however uneven the workers' shards are.
        least: the number of samples that each shard needs, such as those of a batch.

    Raises:
        SpecError: the split failed, or did not return shards of existing, different samples, or a shard is too small.
    """
    count, pool = shard_count(data), np.arange(data.limited_size)
    if data.held_out_size:
        pool = np.delete(pool, held_out_samples(data, seed))
    if data.split.alike:
        return tuple(pool[shard] for shard in _dealt(data, np.empty(0, np.int64), count, size, seed, least))
    used = labels()[pool]
    if not held_out:
        return tuple(pool[shard] for shard in _dealt(data, used, count, size, seed, least))
    order = seeds.generator(seed, "experiment", 0, "held-out shard").permutation(len(used))
    rest = np.sort(order[size:])
    dealt = _dealt(data, used[rest], count - 1, size, seed, least)
    return (*(pool[rest[shard]] for shard in dealt), pool[np.sort(order[:size])])


def _dealt(data: Data, labels: Labels, shards: int, size: int, seed: int, least: int) -> tuple[Indices, ...]:
    split = data.split
    random = seeds.generator(seed, "experiment", 0, "split")
    with errors_of(split, "its deal() failed"):
        dealt: Any = split.deal(Dealing(labels, shards, size, random, data.alpha, least))
    samples = data.training_size if split.alike else len(labels)
    parts = _parts(dealt, shards, size if split.equal else None)
    places = np.concatenate(parts) if parts else np.empty(0, np.int64)
    if parts is None or places.dtype.kind not in "iu" or len(np.unique(places)) != places.size:
        shape = getattr(dealt, "shape", None)
        returned = f"an array {list(shape)}" if isinstance(shape, tuple) else f"a {type(dealt).__name__}"
        wanted = f"an array [{shards}, {size}]" if split.equal else f"{shards} arrays, one for each shard,"
        raise fault(
            split,
            f"its deal() returned {returned}, or places twice: it must return {wanted} of whole numbers, none of them "
            "twice: the places of the samples of each shard",
        )
    if places.size and (places.min() < 0 or places.max() >= samples):
        outside = f"its deal() returned places from {places.min()} to {places.max()}"
        raise fault(split, f"{outside}: they must be from 0 to {samples - 1}")
    smallest = min(range(shards), key=lambda shard: len(parts[shard]), default=0)
    if shards and len(parts[smallest]) < least:
        raise SpecError(
            f"shard {smallest} of {data.name} has {len(parts[smallest])} samples under data.split = {split.kind} with "
            f"seed {seed}, fewer than a batch of {least}: make the split more even, or use another seed, a smaller "
            "train.batch_size, fewer data.shards or a larger data.limit"
        )
    return tuple(part.astype(np.int64, copy=False) for part in parts)


def _parts(dealt: Any, shards: int, size: int | None) -> list[NDArray[Any]] | None:
    """Return the arrays of the shards, `[size]` each; None if they are something else. No size: any size."""
    if size is not None:
        return list(dealt) if getattr(dealt, "shape", None) == (shards, size) else None
    whole = isinstance(dealt, np.ndarray | list | tuple) and len(dealt) == shards
    return list(dealt) if whole and all(isinstance(part, np.ndarray) and part.ndim == 1 for part in dealt) else None


def sizes_of_shards(data: Data, size: int, seed: int, *, held_out: bool, least: int = 1) -> tuple[int, ...]:
    """Return the number of samples in each shard; for splits that are not `equal` this reads the labels.

    Args:
        data: see `all_shards`, as the other arguments.
        size: the number of samples of a shard, on average.
        seed: the run's seed.
        held_out: whether the last shard is drawn first.
        least: the number of samples that each shard needs.

    Raises:
        DataError: the files of the data set are missing, truncated or corrupt.
        SpecError: see `all_shards`.
    """
    if data.split.equal:
        return (size,) * shard_count(data)
    labels = _labels(data)
    return tuple(map(len, all_shards(data, size, seed, lambda: labels, held_out=held_out, least=least)))


def classes_of_shards(data: Data, size: int, seed: int, *, held_out: bool, least: int = 1) -> NDArray[np.int64] | None:
    """Return the number of classes in each shard, `[shards]`; None if the files of the data set are missing.

    Raises:
        SpecError: see `all_shards`.
    """
    # Most points of a sweep have the same shards; a split whose shards are alike does not use the seed.
    key = (
        type(data),
        data.model_dump_json(),
        size,
        held_out,
        least,
        None if data.split.alike and not data.holdout else seed,
    )
    if key not in _counted:
        try:
            labels = _labels(data)
        except DataError:
            return None
        shards = all_shards(data, size, seed, lambda: labels, held_out=held_out, least=least)
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
