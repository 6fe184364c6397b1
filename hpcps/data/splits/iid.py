"""The split that keeps the order of the file."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split


class Iid(Split):
    """Samples are assigned shard after shard in the order of the file, which is random in the official data sets."""

    alike: ClassVar[bool] = True

    kind: Literal["iid"] = "iid"

    def deal(self, dealing: Dealing) -> Indices:
        return np.arange(dealing.shards * dealing.size, dtype=np.int64).reshape(dealing.shards, dealing.size)
