"""A split of your own; `own_data.toml` beside this file uses it."""

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data.splits import Split


class MySplit(Split):
    """A share of the samples is sorted by class before shard after shard is cut."""

    kind: Literal["my_split"] = "my_split"
    share: float = Field(0.5, ge=0, le=1, description="Share of the samples that is sorted.")

    def deal(self, dealing):
        """Return the places of the samples of each shard, `[shards, size]`."""
        order = dealing.random.permutation(dealing.shards * dealing.size)
        first = order[: int(self.share * len(order))]
        first[:] = first[np.argsort(dealing.labels[first], kind="stable")]
        return order.reshape(dealing.shards, dealing.size)
