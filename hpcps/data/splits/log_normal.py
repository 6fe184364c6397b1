"""The split with shards of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split


class LogNormal(Split):
    """Uniform samples of different sizes: the sizes are proportional to draws from a log-normal distribution.

    After Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated learning based on dynamic
    regularization", ICLR 2021, section 4, where sigma is 0.3.
    """

    kind: Literal["log_normal"] = "log_normal"
    sigma: float = Field(
        0.3, ge=0, le=10, description="Standard deviation of the logarithms of the sizes; 0: equal shards."
    )

    @property
    def equal(self) -> bool:
        return False

    def deal(self, dealing: Dealing) -> Sequence[Indices]:
        """See `Split.deal`; the indices of a shard are sorted. All `shards * size` samples are used."""
        shards, total = dealing.shards, dealing.shards * dealing.size
        drawn = dealing.random.lognormal(0.0, self.sigma, shards)
        ends = np.rint(np.cumsum(drawn) / drawn.sum() * total).astype(np.int64)[:-1]
        order = dealing.random.permutation(len(dealing.labels))[:total].astype(np.int64, copy=False)
        return [np.sort(places) for places in np.split(order, ends)]
