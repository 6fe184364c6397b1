"""Zeno, as ZenoPS uses it: compares updates with the validator's own update."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.destination import Combined
from hpcps.numerics.layout import Mask
from hpcps.numerics.operations import mean_of_accepted
from hpcps.numerics.products import Products
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.base import Need, Rule, Sees
from hpcps.rules.context import NOTHING, Context


class Zeno(Rule):
    """Per block, the mean of the updates that are similar to the validator's own update v; zero if none is.

    An update u is accepted iff <u, v> > rho |v|^2 and |u|^2 < (1 + epsilon) |v|^2. So a zero update is accepted iff
    rho < 0, and no update is accepted if v is zero or not finite. After Xie, Koyejo and Gupta, "ZenoPS: a distributed
    learning system integrating communication efficiency and security", Algorithms 15(7):233, 2022, whose artifact
    calls our rho `zeno-eta` and our epsilon `rho`.
    """

    sees: ClassVar[Sees] = "block"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    checks: ClassVar[bool] = True

    kind: Literal["zeno"] = "zeno"
    rho: float = Field(
        -0.001,
        ge=-LARGEST_FACTOR,
        le=LARGEST_FACTOR,
        description="Lower bound of the inner product with v, in units of |v|^2; -0.001 in ZenoPS.",
    )
    epsilon: float = Field(
        0.6,
        gt=-1,
        le=LARGEST_FACTOR,
        description="Upper bound of the squared norm's excess over |v|^2, in units of |v|^2; 0.6 in ZenoPS.",
    )

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        assert context.reference is not None, "zeno needs the validator's own update"
        return mean_of_accepted(updates, context.reference, self._accepts, zeros=self.rho < 0)

    def _accepts(self, sums: Products) -> Mask:
        """Return the (update, block) pairs that are accepted: `[n, B]`; u = v meets either threshold exactly."""
        resembles = sums.inner > self.rho * sums.own
        short = sums.squares < (1.0 + self.epsilon) * sums.own
        accepted: Mask = resembles & short & np.isfinite(sums.own)
        return accepted
