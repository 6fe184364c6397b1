"""When an attack acts: from an epoch on, and in which rounds."""

from __future__ import annotations

from pydantic import Field

from hpcps.registry.config import MOST, Config


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
