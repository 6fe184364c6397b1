"""The mean and the standard deviation of the training samples, by which samples are normalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcps.data.base import Data, Facts
from hpcps.data.samples import Part

_TOGETHER = 1024
"""Samples that are read at a time."""
_DIGITS = 6
"""Significant digits of the statistics, so that they do not depend on the order in which a machine adds."""


def normalised_facts(data: Data, train: Part) -> Facts:
    """Return the facts about the samples as the network gets them, with the mean and std that normalise them.

    Where `facts` state neither, they are those of each channel (index of the first dimension of a sample) of the
    training samples in use: the first `limit`, held-out samples included. All roles compute the same. A channel without
    any deviation is not divided.

    Args:
        data: the data set.
        train: its training part.
    """
    facts = data.input_facts
    if not data.normalise or not facts.measured:
        return facts
    channels = data.facts.shape[0]
    sums, squares, count = np.zeros(channels), np.zeros(channels), 0
    shift: np.ndarray[tuple[int], np.dtype[np.float64]] | None = None
    for start in range(0, data.limited_size, _TOGETHER):
        images = train.read(np.arange(start, min(start + _TOGETHER, data.limited_size), dtype=np.int64)).images
        scale = facts.levels if images.dtype == np.uint8 else 1
        values = images.astype(np.float64).reshape(len(images), channels, -1) / scale
        # Sums of differences to a value near the mean lose no digits.
        shift = values.mean(axis=(0, 2)) if shift is None else shift
        values -= shift[:, None]
        sums += values.sum(axis=(0, 2))
        squares += np.square(values).sum(axis=(0, 2))
        count += values.shape[0] * values.shape[2]
    assert shift is not None
    means = shift + sums / count
    deviations = np.sqrt(np.maximum(squares / count - np.square(sums / count), 0))
    return replace(facts, mean=tuple(map(_rounded, means)), std=tuple(_rounded(each) or 1.0 for each in deviations))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
