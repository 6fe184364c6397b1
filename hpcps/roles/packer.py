"""What a worker makes of its local steps: the update it sends, the attack on it, and the residual it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.attacks import NoAttack
from hpcps.attacks.selection import attacked_blocks, attackers
from hpcps.cuts import Partition
from hpcps.layout import Allocate, Layout, Mask, Vector
from hpcps.messages import Peer
from hpcps.packing import pack, runs
from hpcps.roles.cast import cuts_of
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.state import State, generators_state, restore_generators
from hpcps.training.learner import Learner


@dataclass(frozen=True)
class Part:
    """One partition of an update: for whom, its number among that one's, which of its blocks are sent, and these."""

    combiner: Peer
    number: int
    mask: Mask
    payload: Vector


@dataclass(frozen=True)
class Packed:
    """One round's update, ready to go: its parts in the order in which they are sent; none if absent."""

    parts: tuple[Part, ...]
    sent: int
    skipped: int
    attacked: int

    def fields(self) -> dict[str, object]:
        """What a worker's record says of it."""
        return {
            "participated": bool(self.parts),
            "blocks_sent": self.sent,
            "blocks_skipped": self.skipped,
            "blocks_attacked": self.attacked,
        }


class Packer:
    """Error reset: what is not sent stays with the worker and is folded into the point it trains from next.

    Attributes:
        delta: ZenoPS's Δ `[d]` and, once an update is packed, its residual e.
    """

    def __init__(self, peer: Peer, run: Run, combiners: tuple[Peer, ...], layout: Layout, allocate: Allocate) -> None:
        self._run = run
        self._layout = layout
        self._worker = peer.index
        updates = cuts_of(run, layout).updates
        # By turns, so that all combiners are at work at once.
        numbered = sorted((n, combiner) for combiner in combiners for n in range(len(updates[combiner.index])))
        slices = ((n, combiner, updates[combiner.index][n]) for n, combiner in numbered)
        self._partitions = tuple((combiner, n, Partition.of(layout, bounds)) for n, combiner, bounds in slices)
        self.delta: Vector = np.zeros(layout.size, np.float32)
        self._outgoing = allocate(layout.size)
        purposes = ("participation", "skipping", "attacked blocks", "attack noise", "delay")
        self._streams = {purpose: generator(run.seed, "worker", peer.index, purpose) for purpose in purposes}
        self._attackers = attackers(run.attack, run.topology.workers, run.seed)

    def pack(self, learner: Learner, base: Vector) -> Packed:
        """Turn the local steps since `base` into Δ, decide what is sent, attack it, pack it, keep the rest.

        Every draw is made in every round, so that the streams do not depend on what earlier draws decided.
        """
        run, layout, delta = self._run, self._layout, self.delta
        learner.copy_to(delta)
        delta -= base
        participates = self._streams["participation"].random() < run.communication.participation
        kept = self._streams["skipping"].random(len(layout.blocks)) >= run.communication.skip_rate
        sent = kept & participates
        attacked = np.zeros_like(sent)
        if not isinstance(run.attack, NoAttack):
            choice, noise = self._streams["attacked blocks"], self._streams["attack noise"]
            attacked = attacked_blocks(run.attack, sent, self._worker, self._attackers, choice)
            for b in np.flatnonzero(attacked):
                block = layout.blocks[b]
                run.attack.corrupt(delta[block.offset : block.stop], noise)
        if not participates:
            return Packed((), 0, 0, 0)
        parts = []
        for combiner, number, partition in self._partitions:
            mask, columns = sent[partition.blocks], partition.columns
            payload = pack(partition.layout, delta[columns], mask, self._outgoing[columns])
            parts.append(Part(combiner, number, mask, payload))
        for start, stop in runs(layout, sent):
            delta[start:stop] = 0
        return Packed(tuple(parts), int(sent.sum()), int((~sent).sum()), int(attacked.sum()))

    def delay(self) -> float:
        """Return the seconds that the experiment adds before the update is sent."""
        return self._run.heterogeneity.delay.draw(self._streams["delay"])

    def state(self) -> State:
        """Return the residual and the random streams."""
        return State({"residual": self.delta}).having(streams=generators_state(self._streams))

    def restore(self, state: State) -> None:
        """Take the state back."""
        self.delta[:] = state.arrays["residual"]
        restore_generators(self._streams, state.part("streams"))
