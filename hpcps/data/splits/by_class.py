"""The split that sorts samples by class."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split


class ByClass(Split):
    """Samples are sorted by class and assigned shard after shard, so that a shard has few classes."""

    kind: Literal["by_class"] = "by_class"

    def deal(self, dealing: Dealing) -> Indices:
        order: Indices = np.argsort(dealing.labels, kind="stable")
        return order[: dealing.shards * dealing.size].reshape(dealing.shards, dealing.size)
