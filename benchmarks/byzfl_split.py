"""A split of `byzfl_study.py`: ByzFL's gamma similarity among the honest workers; it is a plugin of its experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data.samples import Indices
from hpcps.data.splits import Dealing, Split


class HonestGamma(Split):
    """A share gamma of the samples of each honest worker is a uniform sample, and the rest is sorted by class.

    ByzFL has no shards for Byzantine workers. Here each shard that is not honest has the samples of one batch, which
    are a uniform sample; the honest shards have all others, in sizes that differ by two samples at most.
    """

    kind: Literal["honest_gamma"] = "honest_gamma"
    gamma: float = Field(ge=0, le=1, description="Share of the samples of a shard that are a uniform sample.")
    honest: tuple[int, ...] = Field(strict=False, description="The shards of the honest workers.")

    @property
    def equal(self) -> bool:
        return False

    def deal(self, dealing: Dealing) -> Sequence[Indices]:
        order = dealing.random.permutation(len(dealing.labels)).astype(np.int64, copy=False)
        others = [shard for shard in range(dealing.shards) if shard not in self.honest]
        spare, order = np.split(order, [len(others) * dealing.least])
        uniform, rest = np.split(order, [int(len(order) * self.gamma)])
        rest = np.sort(rest)
        rest = rest[np.argsort(dealing.labels[rest], kind="stable")]
        parts = [np.array_split(each, len(self.honest)) for each in (uniform, rest)]
        found = dict(zip(others, np.split(spare, len(others)) if others else (), strict=True))
        found |= {shard: np.concatenate(both) for shard, *both in zip(self.honest, *parts, strict=True)}
        return [np.sort(found[shard]) for shard in range(dealing.shards)]
