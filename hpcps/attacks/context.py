"""What an attack may use in addition to the block that it corrupts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AttackContext:
    """The arguments of an attack that accompany a block.

    Attributes:
        random: the worker's random generator for attacks, which checkpoints save.
        block: the index of the block.
        name: its name, such as `conv1.weight`.
        round: the round, or the worker's cycle in asynchronous training, from 0.
        worker: the worker's index.
    """

    random: np.random.Generator
    block: int = 0
    name: str = ""
    round: int = 0
    worker: int = 0
