"""How one update is judged: screened, held against the rule, and scaled by alpha."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.layout import Layout, Mask, Vector
from hpcps.messages import Kind, Message, Peer
from hpcps.roles.tally import Tally
from hpcps.rules import AsyncRule, screen
from hpcps.updates import Updates


@dataclass(frozen=True)
class Announcement:
    """What a worker said when it had done a cycle; an update without a mask has nothing in it that could be used.

    Attributes:
        request: which of the worker's requests it is.
        absent: whether there is no update.
        answered: whether the worker waits for the model.
        base: the model version that the update was made from.
    """

    worker: Peer
    request: int
    absent: bool = False
    answered: bool = True
    base: int = 0
    mask: Mask | None = None
    payload: Vector | None = None

    @staticmethod
    def of(message: Message) -> Announcement:
        """Read a worker's message that has been checked; the worker keeps the payload as it is until it is answered."""
        return Announcement(
            message.sender,
            message.round,
            absent=message.kind is Kind.ABSENT,
            base=message.version,
            mask=message.mask,
            payload=message.payload,
        )


@dataclass(frozen=True)
class Verdict:
    """What became of an update.

    Attributes:
        applied: the blocks that enter the model: `[B]`.
        rejected: the blocks sent that were refused because they are not finite: `[B]`.
        tally: the counts.
    """

    announcement: Announcement
    applied: Mask
    rejected: Mask
    tally: Tally


class Judge:
    """Judges one update after the other.

    Attributes:
        update: what is to be added to the model of the update judged last, `[d]`, where the verdict's blocks are.
    """

    def __init__(self, rule: AsyncRule, layout: Layout) -> None:
        self._rule = rule
        self._layout = layout
        self.update: Vector = np.zeros(layout.size, np.float32)

    def __call__(self, announcement: Announcement, alpha: float, reference: Vector | None) -> Verdict:
        """Judge an update.

        Args:
            announcement: the update.
            alpha: what is applied of it.
            reference: the validator's own update `[d]`, if the rule scores.
        """
        layout = self._layout
        sent = announcement.mask if announcement.mask is not None else np.zeros(len(layout.blocks), np.bool_)
        payload = announcement.payload if announcement.payload is not None else np.zeros(0, np.float32)
        updates = Updates(layout, [payload], sent[None, :])
        refused = screen(updates)
        updates.without(refused).tile(slice(0, layout.size), self.update[None, :])
        rejected = refused[0]
        sent = sent & ~rejected
        judged = self._rule.judge(self.update, sent, layout, reference)
        if alpha != 1.0:
            self.update *= np.float32(alpha)
        accepted = int((judged.applied & ~judged.turned).sum())
        tally = Tally(
            received=len(sent),
            sent=int(sent.sum()),
            accepted=accepted,
            accepted_sent=accepted,
            rejected=int(rejected.sum()),
            turned=int(judged.turned.sum()),
        )
        return Verdict(announcement, judged.applied, rejected, tally)
