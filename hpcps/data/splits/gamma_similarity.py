"""The split between the uniform one and the one that sorts samples by class."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split


class GammaSimilarity(Split):
    """A share gamma of each shard is a uniform sample; the rest is sorted by class and assigned shard after shard.

    1 gives shards with the distribution of the whole set, 0 shards with few classes. After Karimireddy, Kale, Mohri,
    Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, section 7,
    which calls it the similarity.
    """

    kind: Literal["gamma_similarity"] = "gamma_similarity"
    gamma: float = Field(0.5, ge=0, le=1, description="Share of the samples of a shard that are a uniform sample.")

    def deal(self, dealing: Dealing) -> Indices:
        shards, size = dealing.shards, dealing.size
        uniform = int(Decimal(repr(self.gamma)) * size)  # in binary floating point 0.29 * 100 is less than 29
        order = dealing.random.permutation(len(dealing.labels))[: shards * size].astype(np.int64, copy=False)
        mixed, rest = np.split(order, [shards * uniform])
        rest = np.sort(rest)
        rest = rest[np.argsort(dealing.labels[rest], kind="stable")]
        return np.hstack([mixed.reshape(shards, uniform), rest.reshape(shards, size - uniform)])
