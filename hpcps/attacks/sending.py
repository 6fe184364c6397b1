"""Attacks on the exchange: an update that does not come, or comes late."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
from pydantic import Field

from hpcps.attacks.base import ByzantineAttack
from hpcps.registry.config import DAY


class SendingAttack(ByzantineAttack):
    """An attack on when an update is sent, if at all; its values are those of an honest worker."""

    withholds: ClassVar[bool] = False
    """Whether the attackers do not send their updates."""

    scope: Literal["worker"] = Field(
        "worker", description="`worker`: floor(rate * workers) fixed attackers; an update comes as a whole."
    )

    @property
    def delay(self) -> float:
        """The seconds that an attacker waits before it sends."""
        return 0.0

    def __call__(self, update: Any, *, random: np.random.Generator | None = None) -> NoReturn:
        """Refuse to corrupt an update.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"{self.kind} acts on when a worker sends its update, not on its values: use it in a run")


class Silent(SendingAttack):
    """The attackers do not take part: they send no update.

    As with `communication.participation`, an attacker says that it is absent, so that nobody waits for it until a
    timeout, and keeps its update as its residual: it trains on from there, and never sends it later.
    Synchronous: rules combine the updates of the others. Asynchronous: it follows `asynchronous.absent`; with
    `accumulate` it trains on from its own model and never asks for a new one, with `reset` it gets the model.
    """

    kind: Literal["silent"] = "silent"
    withholds: ClassVar[bool] = True


class Late(SendingAttack):
    """The attackers delay their updates by `seconds`, in addition to `heterogeneity.delay`.

    Synchronous: everyone waits for them, and the model is the same. Asynchronous: their updates are stale. In one
    process the delay passes in virtual time.
    """

    kind: Literal["late"] = "late"
    seconds: float = Field(1.0, gt=0, le=DAY, description="Delay of an attacker's update in seconds.")

    @property
    def delay(self) -> float:
        return self.seconds
