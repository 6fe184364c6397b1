"""Selects the attackers and the blocks that they corrupt."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from hpcps.attacks.base import ByzantineAttack
from hpcps.attacks.none import NoAttack
from hpcps.numerics.layout import Mask
from hpcps.seeds import generator as seeded


def attackers(attack: ByzantineAttack | NoAttack, workers: int, seed: int) -> frozenset[int]:
    """Return the fixed set of floor(rate * workers) attackers; empty unless the attack has scope `worker`.

    Every process draws the same set. The attackers of a lower rate are a subset of those of a higher rate.

    Args:
        attack: the attack.
        workers: the number of workers of the run.
        seed: the run's seed.
    """
    if isinstance(attack, NoAttack) or attack.scope != "worker":
        return frozenset()
    order = seeded(seed, "experiment", 0, "attackers").permutation(workers)
    return frozenset(int(worker) for worker in order[: attacker_count(attack, workers)])


def attacker_count(attack: ByzantineAttack, workers: int) -> int:
    """Return floor(rate * workers)."""
    return int(Decimal(repr(attack.rate)) * workers)  # in binary floating point 0.29 * 100 is less than 29


def attacked_blocks(
    attack: ByzantineAttack | NoAttack,
    sent: Mask,
    worker: int,
    attackers: frozenset[int],
    generator: np.random.Generator,
) -> Mask:
    """Return the blocks that a worker corrupts before it sends them.

    With scope `block`, a number is drawn for every block, sent or not, so that the blocks sent in one round do not
    change later draws. For the same reason the noise of an attack has a separate generator.

    Args:
        attack: the attack.
        sent: the blocks that are sent, `[B]`.
        worker: the worker's index.
        attackers: the set that `attackers` returned.
        generator: the worker's random generator for this purpose.
    """
    if isinstance(attack, NoAttack):
        return np.zeros_like(sent)
    if attack.scope == "worker":
        return sent.copy() if worker in attackers else np.zeros_like(sent)
    chosen: Mask = generator.random(len(sent)) < attack.rate
    return sent & chosen
