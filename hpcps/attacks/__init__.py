"""Byzantine attacks."""

from hpcps.attacks.base import Attack
from hpcps.attacks.context import AttackContext
from hpcps.attacks.negative import Negative
from hpcps.attacks.none import NoAttack
from hpcps.attacks.random import Random
from hpcps.attacks.randomscale import RandomScale
from hpcps.attacks.selection import attacked_blocks, attacker_count, attackers

__all__ = [
    "Attack",
    "AttackContext",
    "Negative",
    "NoAttack",
    "Random",
    "RandomScale",
    "attacked_blocks",
    "attacker_count",
    "attackers",
]
