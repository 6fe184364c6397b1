"""No attack."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hpcps.attacks.base import BaseAttack
from hpcps.numerics.arrays import as_numpy, like


class NoAttack(BaseAttack):
    """Every worker is honest."""

    kind: Literal["none"] = "none"

    def __call__(self, update: Any, *, random: np.random.Generator | None = None) -> Any:
        """Return a copy of an update `[d]`, as `Attack` does; `random` has no effect."""
        return like(update, as_numpy(update, 1, "update").copy())
