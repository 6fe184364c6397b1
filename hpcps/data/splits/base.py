"""The base class of splits: a split assigns samples to shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpcps.data.samples import Indices, Labels
from hpcps.registry import Config


@dataclass(frozen=True)
class Dealing:
    """The arguments of a split.

    Attributes:
        labels: the labels of the samples, `[n]`.
        shards: the number of shards.
        size: the number of samples in each; `shards * size` is at most n.
        random: the random generator of the split, in the same state in every process.
        alpha: `data.alpha`.
        least: the number of samples that every shard needs: those of a batch.
    """

    labels: Labels
    shards: int
    size: int
    random: np.random.Generator
    alpha: float
    least: int = 1


class Split(Config, ABC):
    """How samples are assigned to shards; a subclass adds `kind` and its own keys."""

    alike: ClassVar[bool] = False
    """Whether all shards have the distribution of the whole set, so that the validators' shard is not held out."""

    kind: str

    @property
    def equal(self) -> bool:
        """Whether all shards have the same size; if not, `deal` may return one array of indices for each shard."""
        return True

    @abstractmethod
    def deal(self, dealing: Dealing) -> Indices | Sequence[Indices]:
        """Return the indices of the samples of each shard, `[shards, size]`; no index occurs twice."""
