"""The split with uneven class distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split
from hpcps.registry.config import MOST

_DRAWS = 1000
"""The largest number of draws until every shard has enough samples."""


class Dirichlet(Split):
    """Uneven class distributions, drawn from a Dirichlet distribution with concentration alpha.

    `draws = "per_worker"`: each shard draws its class probabilities around those of the whole set, and then its samples
    by these probabilities without replacement; a class that has no samples left is excluded from later draws. All
    shards have the same size. After Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for
    federated visual classification", 2019, section 3.

    `draws = "per_class"`: each class draws the shares of its samples that the shards get, so that shards differ in
    size, too. The draw is repeated until every shard fills a batch. After Li, Diao, Chen and He, "Federated learning on
    non-IID data silos: an experimental study", ICDE 2022, section IV-B.

    For alpha towards 0 a shard has one class, or a class is in one shard; towards infinity all shards have the
    distribution of the whole set.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    draws: Literal["per_worker", "per_class"] = Field(
        "per_worker",
        description="What is drawn: `per_worker`, the class probabilities of each shard; `per_class`, the shares of "
        "each class that the shards get.",
    )
    alpha: float | None = Field(None, gt=0, le=MOST, description="Concentration; small is uneven; default: data.alpha.")

    @property
    def equal(self) -> bool:
        return self.draws == "per_worker"

    def deal(self, dealing: Dealing) -> Indices | Sequence[Indices]:
        """See `Split.deal`; the indices of a shard are sorted."""
        alpha = dealing.alpha if self.alpha is None else self.alpha
        return _per_shard(dealing, alpha) if self.draws == "per_worker" else _per_class(dealing, alpha)


def _per_shard(dealing: Dealing, alpha: float) -> Indices:
    labels, random, size = dealing.labels, dealing.random, dealing.size
    classes, counts = np.unique(labels, return_counts=True)
    waiting = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
    left = counts.copy()
    result = np.empty((dealing.shards, size), dtype=np.int64)
    for shard in range(dealing.shards):
        # For a very small alpha all probabilities but one underflow to 0, and that class may have too few samples.
        mixture = np.maximum(random.dirichlet(alpha * counts / len(labels) * len(classes)), 1e-12)
        taken = np.zeros_like(left)
        while (missing := size - int(taken.sum())) > 0:
            open_classes = mixture * (left > taken)
            taken += random.multinomial(missing, open_classes / open_classes.sum())
            np.minimum(taken, left, out=taken)
        drawn = [waiting[c][left[c] - taken[c] : left[c]] for c in range(len(classes))]
        result[shard] = np.sort(np.concatenate(drawn))
        left -= taken
    return result


def _per_class(dealing: Dealing, alpha: float) -> list[Indices]:
    labels, random, shards = dealing.labels, dealing.random, dealing.shards
    members = [random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    for _ in range(_DRAWS):
        shares = random.dirichlet(np.full(shards, alpha), len(members))
        ends = (np.cumsum(shares, axis=1)[:, :-1] * [[len(places)] for places in members]).astype(np.int64)
        sizes = np.diff(ends, axis=1, prepend=0, append=[[len(places)] for places in members]).sum(axis=0)
        if sizes.min() >= dealing.least:
            break
    parts = [np.split(places, end) for places, end in zip(members, ends, strict=True)]
    return [np.sort(np.concatenate(of_shard)) for of_shard in zip(*parts, strict=True)]
