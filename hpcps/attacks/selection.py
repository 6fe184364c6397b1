"""Who attacks, and which blocks."""

from __future__ import annotations

from decimal import Decimal

import numpy as np

from hpcps.attacks.base import Attack
from hpcps.attacks.none import NoAttack
from hpcps.layout import Mask
from hpcps.seeds import generator as seeded


def attackers(attack: Attack | NoAttack, workers: int, seed: int) -> frozenset[int]:
    """Return the fixed set of floor(rate * workers) attackers; empty unless the attack has scope `worker`.

    Every process draws the same set. A higher rate adds attackers to those of a lower one.

    Args:
        attack: the attack.
        workers: the number of workers of the run.
        seed: the run's seed.
    """
    if isinstance(attack, NoAttack) or attack.scope != "worker":
        return frozenset()
    count = int(Decimal(repr(attack.rate)) * workers)  # decimal: 0.29 of 100 is 29, as it was written
    order = seeded(seed, "experiment", 0, "attackers").permutation(workers)
    return frozenset(int(worker) for worker in order[:count])


def attacked_blocks(
    attack: Attack | NoAttack,
    sent: Mask,
    worker: int,
    attackers: frozenset[int],
    generator: np.random.Generator,
) -> Mask:
    """Return which of the blocks that a worker is about to send it corrupts.

    Under scope `block` a number is drawn for every block, sent or not: what one round sends changes no later
    draw. To keep it so, the noise of an attack has a generator of its own.

    Args:
        attack: the attack.
        sent: the blocks that are sent, `[B]`.
        worker: the worker's index.
        attackers: what `attackers` returned.
        generator: the worker's stream for this purpose.
    """
    if isinstance(attack, NoAttack):
        return np.zeros_like(sent)
    if attack.scope == "worker":
        return sent.copy() if worker in attackers else np.zeros_like(sent)
    chosen: Mask = generator.random(len(sent)) < attack.rate
    return sent & chosen
