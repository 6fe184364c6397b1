"""A little is enough."""

from __future__ import annotations

from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field

from hpcps.attacks.context import AdversaryContext
from hpcps.attacks.moments import Moments
from hpcps.attacks.omniscient import Omniscient
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import rounded
from hpcps.registry.config import LARGEST_FACTOR

Side = Literal["-", "+"]
SIGNS: dict[Side, float] = {"-": -1.0, "+": 1.0}


class Alie(Omniscient):
    """A little is enough: the mean of the honest updates minus z times their standard deviation, per coordinate.

    The standard deviation is that of a sample, and 0 if there is one honest update. With z = "auto", for n updates of
    which f are Byzantine, s = n // 2 + 1 - f honest updates and the Byzantine ones are a majority, and z is the normal
    quantile of (n - f - s) / (n - f), which is kept 1 / (2 (n - f)) away from 0 and 1. If f is small, z is 0 or
    negative: the attack then sends the mean, or an update on the other side of it. After Baruch, Baruch and Goldberg,
    "A little is enough: circumventing defenses for distributed learning", NeurIPS 2019. ByzFL adds 1.5 standard
    deviations and Garfield 1.035.
    """

    kind: Literal["alie"] = "alie"
    z: Literal["auto"] | Annotated[float, Field(ge=0, le=LARGEST_FACTOR)] = Field(
        1.5, description="Number of standard deviations; `auto`: from the numbers of honest and Byzantine updates."
    )
    sign: Side = Field("-", description="`-`: below the mean; `+`: above it.")

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        found = Moments.of(honest)
        z = quantile(context.n, context.f) if self.z == "auto" else self.z
        return rounded(found.mean + SIGNS[self.sign] * z * found.deviation)


def quantile(n: int, f: int) -> float:
    """Return z of `auto` for n updates, of which f are Byzantine."""
    honest = n - f
    supporters = n // 2 + 1 - f
    share = (honest - supporters) / honest
    edge = 1 / (2 * honest)
    return NormalDist().inv_cdf(min(max(share, edge), 1 - edge))
