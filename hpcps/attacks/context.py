"""What an attack may use in addition to the updates that it corrupts."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Layout, Vector


@dataclass(frozen=True)
class AttackContext:
    """The arguments of an attack that accompany a block.

    Attributes:
        random: the worker's random generator for attacks, which checkpoints save.
        block: the index of the block.
        name: its name, such as `conv1.weight`.
        round: the round, or the worker's cycle in asynchronous training, from 0.
        worker: the worker's index.
        model_change: how this block of the global model changed between the last two models that the worker got,
            `[size]`, zero before the second one; None unless the attack needs `model`. It must not be changed.
    """

    random: np.random.Generator
    block: int = 0
    name: str = ""
    round: int = 0
    worker: int = 0
    model_change: Vector | None = None


@dataclass(frozen=True, kw_only=True)
class AdversaryContext:
    """The arguments of an omniscient attack that accompany the updates of one round of one combiner.

    Attributes:
        n: the number of participants, h + b.
        f: the number of Byzantine participants, b.
        layout: the blocks of the d elements.
        random: the adversary's random generator for this combiner, which checkpoints save.
        round: the round; in asynchronous training, the cycle of the worker whose update is replaced.
        state: arrays by name that the attack keeps from one round of this combiner to the next, and which checkpoints
            save. Values are copied when they are set; the copies may be changed in place.
        workers: the indices of the workers of the honest rows, `[h]`.
        byzantine: the indices of the workers of the own rows, `[b]`.
        rule: if the attack needs `rule`, a function of updates `[n, d]` float32: the update `[d]` that the run's rule
            makes of them; a new array. Its rows are the honest participants and the Byzantine ones, in any order and
            number; blocks that are not finite count as zero. It does not change the state of the rule.
    """

    n: int
    f: int
    layout: Layout
    random: np.random.Generator
    round: int = 0
    state: MutableMapping[str, NDArray[Any]] = field(default_factory=dict)
    workers: tuple[int, ...] = ()
    byzantine: tuple[int, ...] = ()
    rule: Callable[[Vector], Vector] | None = None
