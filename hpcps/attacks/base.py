"""What every attack is: a corruption of the blocks that a worker is about to send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.config import Config
from hpcps.layout import Vector


class Attack(Config, ABC):
    """A Byzantine attack; the subclass's fields are its keys in the experiment file."""

    rate: float = Field(
        0.2, ge=0, le=1, description="Share of sent blocks (scope block) or of workers (scope worker) attacked, 0 to 1."
    )
    scope: Literal["block", "worker"] = Field(
        "block",
        description="`block`: each block sent is attacked independently; `worker`: floor(rate * workers) fixed "
        "attackers corrupt all their blocks.",
    )

    @abstractmethod
    def corrupt(self, block: Vector, generator: np.random.Generator) -> None:
        """Corrupt one block `[size]` in place."""
