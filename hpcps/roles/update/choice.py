"""What a worker sends of a round: whether it takes part, the blocks that it does not skip, and when it sends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.numerics.layout import Mask
from hpcps.roles.update.attacker import Attacker
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Choice:
    """What becomes of an update.

    Attributes:
        sent: the blocks that are sent `[B]`; none if the worker does not participate. Of an update that the attack
            withholds, those that would be sent.
        withheld: whether nothing is sent, because the worker does not participate or attacks in this way.
        discarded: whether the local steps are discarded, because the worker abandoned the round.
        delay: the seconds that the experiment adds before the update is sent.
    """

    sent: Mask
    withheld: bool
    discarded: bool
    delay: float


class UpdateChoice:
    """Chooses what a worker sends, round by round.

    Every draw is made in every round, so that the streams do not depend on what earlier draws decided.
    """

    def __init__(self, run: Run, blocks: int, attacker: Attacker, streams: dict[str, np.random.Generator]) -> None:
        """Prepare the choices of a worker.

        Args:
            run: the run.
            blocks: the number of blocks.
            attacker: may withhold or delay an update.
            streams: random numbers for `participation`, `skipping` and `delay`.
        """
        self._run, self._blocks, self._attacker, self._streams = run, blocks, attacker, streams

    def draw(self, round: int, epoch: int, abandoned: int | None) -> Choice:
        """Choose what is sent of a round.

        Args:
            round: the round or cycle.
            epoch: the epochs of the run that were over when the round began, as far as the worker knows.
            abandoned: the local steps after which the worker abandoned the round; None if it did not.
        """
        run, streams, attacker = self._run, self._streams, self._attacker
        participates = streams["participation"].random() < run.communication.participation and abandoned is None
        kept = streams["skipping"].random(self._blocks) >= run.communication.skip_rate
        delay = run.heterogeneity.delay.draw(streams["delay"]) + attacker.delay(round, epoch)
        return Choice(
            kept & participates,
            withheld=not participates or attacker.withholds(round, epoch),
            discarded=abandoned is not None and run.train.abandoned == "lost",
            delay=0.0 if abandoned is not None else delay,
        )
