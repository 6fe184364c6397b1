"""The base classes of attacks, who attacks and when, and the attack that changes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.arrays import as_numpy, like
from hpcps.numerics.layout import Mask, Vector
from hpcps.registry.config import MOST, Config
from hpcps.registry.failures import described, errors_of, returned
from hpcps.registry.kinds import not_among
from hpcps.rules.context import count
from hpcps.seeds import generator as seeded

Need = Literal["own", "model", "honest", "rule"]
"""What an attack may know. `own`: the worker's own honest update; `model`: the last change of the global model;
`honest`: the updates of the honest workers of the same combiner; `rule`: what the run's rule makes of any updates."""


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

    @property
    def after_encoding(self) -> bool:
        """Whether the attack acts on what is encoded."""
        return False

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"needs": sorted(cls.needs)}

    @classmethod
    def faults(cls) -> list[str]:
        return not_among(cls, "needs", cls.may_need)


class NoAttack(BaseAttack):
    """Every worker is honest."""

    kind: Literal["none"] = "none"

    def __call__(self, update: Any, *, random: np.random.Generator | None = None) -> Any:
        """Return a copy of an update `[d]`, as `Attack` does; `random` has no effect."""
        return like(update, as_numpy(update, 1, "update").copy())


class AttackSchedule(Config):
    """The rounds of an attack. It depends on nothing but the round and the epoch, so no checkpoint has to save it."""

    from_epoch: int = Field(
        0,
        ge=0,
        le=MOST,
        description="Epochs of the run (of validator 0, or of worker 0 without validators) before the attack begins; "
        "asynchronous: as far as the worker knows from the model that it trains from.",
    )
    every: int = Field(
        1,
        ge=1,
        le=MOST,
        description="Period of the attack in rounds (asynchronous: the worker's cycles), counted from the first round "
        "of the run.",
    )
    on: int = Field(
        1,
        ge=1,
        le=MOST,
        description="Rounds at the beginning of each period in which the attack acts, at most `every`; `every = 5, "
        "on = 2`: it acts in rounds 0, 1, 5, 6, 10, …",
    )

    def active(self, round: int, epoch: int) -> bool:
        """Return whether the attack acts.

        Args:
            round: the round, or the worker's cycle in asynchronous training, from 0.
            epoch: the epochs of the run that are over when the round begins.
        """
        return epoch >= self.from_epoch and round % self.every < self.on


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
    acts_on: Literal["update", "encoding"] = Field(
        "update",
        description="With `communication.compression`: `update`: the attack changes an update before it is encoded; "
        "`encoding`: it changes the values that combiners would decode, and the attacker encodes the result once more. "
        "Then the attacker's residual is that of an honest worker, and an attack that knows other updates knows what "
        "combiners decode of them.",
    )

    @property
    def after_encoding(self) -> bool:
        return self.acts_on == "encoding"


class Attack(ByzantineAttack, ABC):
    """An attack on updates; the subclass's fields are its keys in the experiment file."""

    needs: ClassVar[frozenset[Need]] = frozenset({"own"})

    remains: ClassVar[bool] = False
    """Whether the attacker's residual keeps what the encoding loses of the attack, so that later updates contain it."""

    def replace(self, block: Vector, context: AttackContext) -> None:
        """Replace one block of the worker's update; the attack gets zeros if it does not need the update.

        Raises:
            SpecError: a plugin's or package's `corrupt` failed, or it returned something; the message names the attack,
                its file and the line.
        """
        if "own" not in self.needs:
            block[:] = 0.0
        with errors_of(self, "its corrupt() failed", foreign=True):
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


def attackers(attack: ByzantineAttack | NoAttack, workers: int, seed: int) -> frozenset[int]:
    """Return the fixed set of floor(rate * workers) attackers; empty unless the attack has scope `worker`.

    Every process that calls this draws the same set; if the attack knows other updates, only the adversary calls it.
    The attackers of a lower rate are a subset of those of a higher rate.

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
    return count(float(attack.rate), workers)


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
