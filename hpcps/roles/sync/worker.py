"""The worker of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcps.attacks import NoAttack
from hpcps.attacks.selection import attacked_blocks, attackers
from hpcps.errors import RunError
from hpcps.layout import Mask, Vector
from hpcps.messages import Kind, Message, Peer
from hpcps.packing import pack, runs
from hpcps.roles.checks import rejection
from hpcps.roles.events import Compute, Computed, Effect, Record, Send, SetDeadline
from hpcps.roles.sync.trainee import Trainee
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.training.learner import Learner, Progress


@dataclass(frozen=True)
class Packed:
    """One round's update, ready to go: a (combiner, mask, payload) for each combiner; no parts if absent."""

    parts: tuple[tuple[Peer, Mask, Vector], ...]
    sent: int
    skipped: int
    attacked: int


class Worker(Trainee):
    """Trains on its shard, sends its update (error reset keeps what it did not send), and takes the new model.

    Its flat vectors are ZenoPS's c (`_base`), Δ and then e (`_delta`); x is the learner's.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner) -> None:
        super().__init__(peer, run, run_id, learner)
        self._delta: Vector = np.zeros_like(self._base)
        self._outgoing: Vector = np.empty_like(self._base)
        self._routes = tuple(
            (combiner, start, stop, learner.layout.restrict(start, stop))
            for combiner, start, stop in self._cast.routes(peer.index, learner.layout)
        )
        self._participation = generator(run.seed, "worker", peer.index, "participation")
        self._skipping = generator(run.seed, "worker", peer.index, "skipping")
        self._choice = generator(run.seed, "worker", peer.index, "attacked blocks")
        self._noise = generator(run.seed, "worker", peer.index, "attack noise")
        self._attackers = attackers(run.attack, run.topology.workers, run.seed)

    def adopt(self) -> None:
        """Set x = c = the model + e: the residual survives locally."""
        np.add(self._inbox.model, self._delta, out=self._base)
        self._learner.copy_from(self._base)

    def take_steps(self, steps: int) -> Progress:
        """Train on the own shard."""
        return self._learner.train(steps)

    def finish_steps(self) -> Iterator[Effect]:
        """Make the update."""
        yield Compute("pack", self._pack)

    def computed(self, event: Computed) -> Iterator[Effect]:
        """Send the update that was packed, and wait for the next model."""
        packed: Packed = event.result
        for combiner, mask, payload in packed.parts:
            shard = combiner.index if combiner.role == "server" else 0
            message = Message(Kind.UPDATE, self.peer, self._run_id, self.round, shard, mask=mask, payload=payload)
            yield Send(combiner, message)
        if not packed.parts:
            for combiner, *_ in self._routes:
                yield Send(combiner, Message(Kind.ABSENT, self.peer, self._run_id, self.round))
        yield Record(
            "round",
            {
                **self.training_fields(),
                "participated": bool(packed.parts),
                "blocks_sent": packed.sent,
                "blocks_skipped": packed.skipped,
                "blocks_attacked": packed.attacked,
            },
        )
        self.round += 1
        yield SetDeadline(self._inbox.waiting_for)

    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Refuse what no worker gets."""
        yield rejection(source, f"a worker gets no {message.kind.name}")

    def refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Record what is no message; a server's cannot be done without."""
        if source.role == "server":
            raise RunError(f"{self.peer} cannot use what {source} sent in round {self.round}: {reason}")
        yield rejection(source, reason)

    def _pack(self) -> Packed:
        """Turn the local steps into Δ, decide what is sent, attack it, pack it, and keep the rest as the residual.

        Every draw is made in every round, so that the streams do not depend on what earlier draws decided.
        """
        run, layout, delta = self._run, self._learner.layout, self._delta
        self._learner.copy_to(delta)
        delta -= self._base
        participates = self._participation.random() < run.communication.participation
        kept = self._skipping.random(len(layout.blocks)) >= run.communication.skip_rate
        sent = kept & participates
        attacked = np.zeros_like(sent)
        if not isinstance(run.attack, NoAttack):
            attacked = attacked_blocks(run.attack, sent, self.peer.index, self._attackers, self._choice)
            for b in np.flatnonzero(attacked):
                block = layout.blocks[b]
                run.attack.corrupt(delta[block.offset : block.stop], self._noise)
        if not participates:
            return Packed((), 0, 0, 0)
        parts = []
        for combiner, start, stop, pieces in self._routes:
            # A shard's pieces are a run of neighbouring blocks, the first and last of them perhaps cut.
            first = int(np.searchsorted(layout.offsets, start, side="right")) - 1
            mask = sent[first : first + len(pieces.blocks)]
            parts.append((combiner, mask, pack(pieces, delta[start:stop], mask, self._outgoing[start:stop])))
        for start, stop in runs(layout, sent):
            delta[start:stop] = 0
        return Packed(tuple(parts), int(sent.sum()), int((~sent).sum()), int(attacked.sum()))
