"""The base classes of attacks: an attack corrupts blocks before a worker sends them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from hpcps.attacks.context import AttackContext
from hpcps.numerics.arrays import as_numpy, like
from hpcps.numerics.layout import Vector
from hpcps.registry.config import Config
from hpcps.registry.failures import described, returned, told
from hpcps.registry.validation import not_among

Need = Literal["own"]
"""The honest updates that an attack may know; `own`: the worker's own."""


class BaseAttack(Config, ABC):
    """The behaviour of Byzantine workers, or its absence; `kind` is its name in the experiment file."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """The honest updates that the attack needs to know; it does not see others."""

    kind: str

    @classmethod
    def declarations(cls) -> dict[str, object]:
        """See `Config.declarations`."""
        return {"needs": sorted(cls.needs)}

    @classmethod
    def faults(cls) -> list[str]:
        """See `Config.faults`."""
        return not_among(cls, "needs", get_args(Need))


class Attack(BaseAttack, ABC):
    """A Byzantine attack; the subclass's fields are its keys in the experiment file."""

    needs: ClassVar[frozenset[Need]] = frozenset({"own"})

    rate: float = Field(
        0.2, ge=0, le=1, description="Share of sent blocks (scope block) or of workers (scope worker) attacked, 0 to 1."
    )
    scope: Literal["block", "worker"] = Field(
        "block",
        description="`block`: each block sent is attacked independently; `worker`: floor(rate * workers) fixed "
        "attackers corrupt all their blocks.",
    )

    def replace(self, block: Vector, context: AttackContext) -> None:
        """Replace one block of the worker's update; the attack gets zeros if it does not need the update.

        Raises:
            SpecError: a plugin's or package's `corrupt` failed, or it returned something; the message names the attack,
                its file and the line.
        """
        if "own" not in self.needs:
            block[:] = 0.0
        with told(self, "its corrupt() failed", foreign=True):
            found: object = self.corrupt(block, context)
        if found is not None and found is not block:
            what = f"{described(found)}: it must change the block in place and return nothing"
            raise returned(self, "corrupt", what)

    @abstractmethod
    def corrupt(self, block: Vector, context: AttackContext) -> None:
        """Corrupt one block of the worker's update, `[size]` float32, in place."""

    def __call__(self, update: Any, *, random: np.random.Generator | None = None) -> Any:
        """Corrupt an update outside of a run, such as in a notebook: `Negative(scale=6)(x)`.

        Args:
            update: `[d]`, a numpy array or a torch tensor of any floating type and device; it is one block.
            random: the random generator of the noise; by default a new one with a new seed.

        Returns:
            A corrupted copy, of the same type and on the same device.

        Raises:
            ValueError: the update does not have one dimension, or holds something other than numbers; or `random` is no
                random generator.
        """
        if not isinstance(random, np.random.Generator | None):
            raise ValueError(f"random must be a random generator, such as numpy.random.default_rng(1), not {random!r}")
        block = as_numpy(update, 1, "update").copy()
        self.replace(block, AttackContext(random or np.random.default_rng()))
        return like(update, block)
