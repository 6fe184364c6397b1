"""The base classes of attacks: an attack corrupts blocks before a worker sends them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.context import AttackContext
from hpcps.attacks.schedule import AttackSchedule
from hpcps.numerics.arrays import as_numpy, like
from hpcps.numerics.layout import Vector
from hpcps.registry.config import Config
from hpcps.registry.failures import described, returned, told
from hpcps.registry.validation import not_among

Need = Literal["own", "model", "honest", "rule"]
"""What an attack may know. `own`: the worker's own honest update; `model`: the last change of the global model;
`honest`: the updates of the honest workers of the same combiner; `rule`: what the run's rule makes of any updates."""


class BaseAttack(Config, ABC):
    """The behaviour of Byzantine workers, or its absence; `kind` is its name in the experiment file."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the attack needs to know; it sees nothing else. The need `rule` includes `honest`."""

    may_need: ClassVar[tuple[Need, ...]] = ("own", "model")
    """What an attack of this base class can get."""

    kind: str

    @property
    def omniscient(self) -> bool:
        """Whether the attack knows the updates of other workers, so that the run has an adversary."""
        return bool(self.needs & {"honest", "rule"})

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"needs": sorted(cls.needs)}

    @classmethod
    def faults(cls) -> list[str]:
        return not_among(cls, "needs", cls.may_need)


class ByzantineAttack(AttackSchedule, BaseAttack, ABC):
    """The keys of all attacks: who attacks, and when."""

    rate: float = Field(
        0.2, ge=0, le=1, description="Share of sent blocks (scope block) or of workers (scope worker) attacked, 0 to 1."
    )
    scope: Literal["block", "worker"] = Field(
        "block",
        description="`block`: each block sent is attacked independently; `worker`: floor(rate * workers) fixed "
        "attackers corrupt all their blocks.",
    )


class Attack(ByzantineAttack, ABC):
    """An attack on updates; the subclass's fields are its keys in the experiment file."""

    needs: ClassVar[frozenset[Need]] = frozenset({"own"})

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

    def __call__(
        self, update: Any, *, random: np.random.Generator | None = None, model_change: Any | None = None
    ) -> Any:
        """Corrupt an update outside of a run, such as in a notebook: `Negative(scale=6)(x)`.

        Args:
            update: `[d]`, a numpy array or a torch tensor of any floating type and device; it is one block.
            random: the random generator of the noise; by default a new one with a new seed.
            model_change: the last change of the global model `[d]`, for an attack that needs `model`.

        Returns:
            A corrupted copy, of the same type and on the same device.

        Raises:
            ValueError: the update does not have one dimension, or holds something other than numbers; or `random` is no
                random generator; or `model_change` is missing, or of another size.
        """
        if not isinstance(random, np.random.Generator | None):
            raise ValueError(f"random must be a random generator, such as numpy.random.default_rng(1), not {random!r}")
        block = as_numpy(update, 1, "update").copy()
        change = None
        if "model" in self.needs:
            if model_change is None:
                raise ValueError(f"{self.kind} needs the last change of the global model: give it in `model_change=`")
            change = as_numpy(model_change, 1, "model_change")
            if change.size != block.size:
                raise ValueError(f"model_change has {change.size} elements, the update has {block.size}")
        self.replace(block, AttackContext(random or np.random.default_rng(), model_change=change))
        return like(update, block)
