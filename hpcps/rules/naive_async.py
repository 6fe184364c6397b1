"""Every update as it comes."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.layout import Layout, Mask, Vector
from hpcps.rules.base import AsyncRule, Judged


class NaiveAsync(AsyncRule):
    """Adds alpha times every update, whatever it is and however stale."""

    kind: Literal["naive_async"] = "naive_async"

    def judge(self, update: Vector, sent: Mask, layout: Layout, reference: Vector | None = None) -> Judged:
        """See `AsyncRule.judge`."""
        return Judged(sent.copy(), np.zeros_like(sent))
