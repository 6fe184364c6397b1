"""What a worker sends that does not want to train."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.attacks.base import Attack, Need
from hpcps.attacks.context import AttackContext
from hpcps.attacks.randomscale import noise_like
from hpcps.numerics.layout import Vector


class FreeRider(Attack):
    """u becomes c, the change of the global model between the last two models that the worker got; or |c| * g / |g|.

    g ~ N(0, 1) elementwise, for each block. Before the worker has two models, it sends zeros. The worker takes its
    local steps all the same, so that rounds and epochs take the same time as without the attack; it does not use the
    result.

    Source: delta weights in J. Lin, M. Du, J. Liu, "Free-riders in federated learning: attacks and defenses",
    arXiv:1911.12560.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"model"})

    kind: Literal["free_rider"] = "free_rider"
    sends: Literal["change", "noise"] = Field(
        "change", description="`change`: the last change of the model; `noise`: noise with its norm."
    )
    scope: Literal["worker"] = Field(
        "worker", description="`worker`: floor(rate * workers) fixed attackers; a free rider is a whole worker."
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        change = context.model_change
        assert change is not None, "the attack needs `model`"
        if self.sends == "change":
            block[:] = change
        else:
            noise_like(change, block, 1.0, context.random)
