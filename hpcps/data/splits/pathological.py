"""The split in which a shard has few classes."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.data.samples import Indices
from hpcps.data.splits.base import Dealing, Split
from hpcps.registry.config import MOST_ROLES


class Pathological(Split):
    """Samples are sorted by class and cut into s equal pieces for each shard; a shard gets s random pieces.

    A piece has samples of one class, or of several neighbouring ones where a class ends inside it. After McMahan,
    Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep networks from decentralized
    data", AISTATS 2017, section 3, where s is 2.
    """

    kind: Literal["pathological"] = "pathological"
    classes: int = Field(2, ge=1, le=MOST_ROLES, description="s, the number of pieces of each shard.")

    def deal(self, dealing: Dealing) -> Indices:
        """See `Split.deal`; the sizes of the pieces of a shard differ by one sample at most."""
        s, shards, size = self.classes, dealing.shards, dealing.size
        order = np.argsort(dealing.labels, kind="stable")[: shards * size]
        owners = dealing.random.permutation(np.repeat(np.arange(shards), s))
        number = np.empty_like(owners)  # which of its owner's pieces a piece is
        number[np.argsort(owners, kind="stable")] = np.tile(np.arange(s), shards)
        pieces = np.repeat(owners, (size + number) // s)
        return order[np.argsort(pieces, kind="stable")].reshape(shards, size).astype(np.int64, copy=False)
