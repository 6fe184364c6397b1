"""Where a combiner gathers one round's updates of its share of the workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcps.layout import Layout, Mask, Vector
from hpcps.messages import Kind, Message, Peer
from hpcps.roles.checks import not_finite, rejection, wrong_blocks
from hpcps.roles.events import Effect
from hpcps.roles.tally import Tally
from hpcps.rules import Combined, Rule, combine
from hpcps.updates import Updates

_NOTHING: Vector = np.zeros(0, np.float32)


class Collector:
    """Gathers one message per worker of a share and combines them in worker order, whatever the order of arrival.

    The payloads stay where they came: no worker touches its update before it has the next model.
    """

    def __init__(self, share: tuple[Peer, ...], layout: Layout) -> None:
        self._share = share
        self._row = {peer: row for row, peer in enumerate(share)}
        self._layout = layout
        self._payloads: list[Vector] = [_NOTHING] * len(share)
        self._sent: Mask = np.zeros((len(share), len(layout.blocks)), np.bool_)
        self._present = np.zeros(len(share), np.bool_)
        self._missing = set(share)
        self._malformed = 0
        self._rejections: list[Effect] = []
        self.tally = Tally()

    @property
    def complete(self) -> bool:
        """Whether every worker of the share has said something."""
        return not self._missing

    @property
    def elements(self) -> int:
        """The elements of the updates gathered so far."""
        return int(self._present.sum()) * self._layout.size

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The workers that have not."""
        return tuple(peer for peer in self._share if peer in self._missing)

    def clear(self) -> None:
        """Begin to gather the next round."""
        self._missing = set(self._share)
        self._present[:] = False
        self._sent[:] = False
        self._payloads = [_NOTHING] * len(self._share)
        self._malformed = 0

    def put(self, source: Peer, message: Message, round: int) -> Iterator[Effect]:
        """Take a worker's UPDATE or ABSENT; what is wrong with it is recorded and counts as skipped."""
        if source not in self._missing or message.round < round:
            yield rejection(source, f"a second or late message (of round {message.round})")
            return
        if message.round > round:
            yield from self.refuse(source, f"it is of round {message.round}")
            return
        if message.kind is Kind.ABSENT:
            self._missing.discard(source)
            return
        reason = wrong_blocks(message, self._layout)
        if reason:
            yield from self.refuse(source, reason)
            return
        mask = message.mask if message.mask is not None else np.zeros(0, np.bool_)  # of a shard without blocks
        row = self._row[source]
        self._payloads[row] = message.values
        self._sent[row] = mask
        self._present[row] = True
        self._missing.discard(source)

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count a malformed message as an update with every block skipped, if its worker still owes one."""
        yield rejection(source, reason)
        self._malformed += 1
        if source in self._missing:
            row = self._row[source]
            self._present[row] = True
            self._missing.discard(source)

    def combine(
        self,
        rule: Rule,
        reference: Vector | None = None,
        *,
        base: Vector | None = None,
        out: Vector | None = None,
        threads: int = 1,
    ) -> Combined:
        """Combine what is finite of the gathered updates; for the arguments, see `Rule.combine`."""
        rows = np.flatnonzero(self._present)
        updates = Updates(self._layout, [self._payloads[row] for row in rows], self._sent[rows])
        combined, rejected = combine(rule, updates, reference, base=base, out=out, threads=threads)
        self._rejections = [
            not_finite(self._share[row], blocks) for row, blocks in zip(rows, rejected, strict=True) if blocks.any()
        ]
        sent = updates.sent & ~rejected
        self.tally = Tally(
            received=sent.size,
            sent=int(sent.sum()),
            accepted=int(combined.accepted.sum()),
            accepted_sent=int((combined.accepted & sent).sum()),
            rejected=int(rejected.sum()),
        )
        return combined

    def report(self) -> tuple[dict[str, object], list[Effect]]:
        """Return the fields of the round's record, and a record for every sender whose blocks were rejected."""
        participants = [peer.index for peer, present in zip(self._share, self._present, strict=True) if present]
        fields: dict[str, object] = {
            "participants": participants,
            "absent": [peer.index for peer in self._share if peer.index not in participants],
            "received_pairs": self.tally.received,
            "sent_pairs": self.tally.sent,
            "skipped_pairs": self.tally.received - self.tally.sent,
            "accepted_pairs": self.tally.accepted,
            "accepted_sent_pairs": self.tally.accepted_sent,
            "rejected_blocks": self.tally.rejected,
            "malformed": self._malformed,
            "acceptance_rate": self.tally.acceptance_rate,
        }
        return fields, self._rejections
