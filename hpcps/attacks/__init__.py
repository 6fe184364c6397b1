"""Byzantine attacks; add one with a module here and a line in `AnyAttack`."""

from typing import Annotated

from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.attacks.negative import Negative
from hpcps.attacks.none import NoAttack
from hpcps.attacks.random import Random
from hpcps.attacks.randomscale import RandomScale
from hpcps.attacks.selection import attacked_blocks, attackers

AnyAttack = Annotated[NoAttack | Negative | Random | RandomScale, Field(discriminator="kind")]

__all__ = [
    "AnyAttack",
    "Attack",
    "Negative",
    "NoAttack",
    "Random",
    "RandomScale",
    "attacked_blocks",
    "attackers",
]
