"""The split with uneven class distributions."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split


class Dirichlet(Split):
    """Each shard draws its class probabilities from a Dirichlet distribution around those of the whole set.

    Then it draws its samples by these probabilities without replacement; a class that has no samples left is excluded
    from later draws. For `data.alpha` towards 0 a shard has one class; towards infinity all shards have the
    distribution of the whole set. After Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution
    for federated visual classification", 2019, section 3.
    """

    kind: Literal["dirichlet"] = "dirichlet"

    def deal(self, dealing: Dealing) -> Indices:
        """See `Split.deal`; the indices of a shard are sorted."""
        labels, random, size = dealing.labels, dealing.random, dealing.size
        classes, counts = np.unique(labels, return_counts=True)
        waiting = [random.permutation(np.flatnonzero(labels == label)) for label in classes]
        left = counts.copy()
        result = np.empty((dealing.shards, size), dtype=np.int64)
        for shard in range(dealing.shards):
            # For a very small alpha all probabilities but one underflow to 0, and that class may have too few samples.
            mixture = np.maximum(random.dirichlet(dealing.alpha * counts / len(labels) * len(classes)), 1e-12)
            taken = np.zeros_like(left)
            while (missing := size - int(taken.sum())) > 0:
                open_classes = mixture * (left > taken)
                taken += random.multinomial(missing, open_classes / open_classes.sum())
                np.minimum(taken, left, out=taken)
            drawn = [waiting[c][left[c] - taken[c] : left[c]] for c in range(len(classes))]
            result[shard] = np.sort(np.concatenate(drawn))
            left -= taken
        return result
