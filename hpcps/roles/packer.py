"""How a worker turns its local steps into an update: what it sends, the attack on it, and the residual it keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.attacks import AttackContext, NoAttack
from hpcps.attacks.selection import attacked_blocks, attackers
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector
from hpcps.numerics.packing import pack, runs
from hpcps.numerics.state import State, generators_state, restore_generators
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.training.learner import Learner


@dataclass(frozen=True)
class UpdatePart:
    """One partition of an update: its combiner, its number there, the mask of its sent blocks, and these blocks."""

    combiner: Peer
    number: int
    mask: Mask
    payload: Vector


@dataclass(frozen=True)
class Packed:
    """One round's update.

    Attributes:
        parts: its partitions in the order in which they are sent; none if the worker is absent.
        sent: the number of blocks that are sent.
        skipped: the number of blocks that are not.
        attacked: the number of blocks that the attack changed.
        delay: the seconds that the experiment adds before the update is sent.
    """

    parts: tuple[UpdatePart, ...]
    sent: int
    skipped: int
    attacked: int
    delay: float

    def fields(self) -> dict[str, object]:
        """Return the fields of the worker's record."""
        return {
            "participated": bool(self.parts),
            "blocks_sent": self.sent,
            "blocks_skipped": self.skipped,
            "blocks_attacked": self.attacked,
            "delay": self.delay,
        }


class Packer:
    """Makes updates with error reset: the worker keeps what it does not send, and adds it to the next model.

    Attributes:
        delta: ZenoPS's Δ `[d]` and, once an update is packed, its residual e.
    """

    def __init__(self, peer: Peer, run: Run, combiners: tuple[Peer, ...], layout: Layout, allocate: Allocate) -> None:
        self._run = run
        self._layout = layout
        self._worker = peer.index
        updates = partitioning_of(run, layout).updates
        # In turns, so that all combiners work at the same time.
        numbered = sorted((n, combiner) for combiner in combiners for n in range(len(updates[combiner.index])))
        slices = ((n, combiner, updates[combiner.index][n]) for n, combiner in numbered)
        self._partitions = tuple((combiner, n, Partition.of(layout, bounds)) for n, combiner, bounds in slices)
        # The blocks that a combiner gets in several partitions.
        pieces: dict[tuple[Peer, int], list[slice]] = {}
        for combiner, _, partition in self._partitions:
            for index, block in enumerate(partition.layout.blocks, partition.blocks.start):
                start = partition.columns.start + block.offset
                pieces.setdefault((combiner, index), []).append(slice(start, start + block.size))
        self._divided = tuple((index, slices) for (_, index), slices in pieces.items() if len(slices) > 1)
        self.delta: Vector = np.zeros(layout.size, np.float32)
        self._outgoing = allocate(layout.size)
        purposes = ("participation", "skipping", "attacked blocks", "attack noise", "delay")
        self._streams = {purpose: generator(run.seed, "worker", peer.index, purpose) for purpose in purposes}
        self._attackers = attackers(run.attack, run.topology.workers, run.seed)

    def pack(self, learner: Learner, base: Vector, round: int) -> Packed:
        """Compute Δ since `base`, choose the blocks to send, attack and pack them, and keep the rest.

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
                context = AttackContext(noise, int(b), block.name, round, self._worker)
                run.attack.replace(delta[block.offset : block.stop], context)
        delay = run.heterogeneity.delay.draw(self._streams["delay"])
        if not participates:
            return Packed((), 0, 0, 0, delay)
        for index, slices in self._divided:
            # Combiners refuse a block that is not finite as a whole, so every partition of it must be not finite.
            if sent[index] and not all(np.isfinite(delta[piece]).all() for piece in slices):
                for piece in slices:
                    delta[piece] = np.nan
        parts = []
        for combiner, number, partition in self._partitions:
            mask, columns = sent[partition.blocks], partition.columns
            payload = pack(partition.layout, delta[columns], mask, self._outgoing[columns])
            parts.append(UpdatePart(combiner, number, mask, payload))
        for start, stop in runs(layout, sent):
            delta[start:stop] = 0
        return Packed(tuple(parts), int(sent.sum()), int((~sent).sum()), int(attacked.sum()), delay)

    def state(self) -> State:
        """Return the residual and the random streams."""
        return State({"residual": self.delta}).having(streams=generators_state(self._streams))

    def restore(self, state: State) -> None:
        """Restore the residual and the random streams."""
        self.delta[:] = state.arrays["residual"]
        restore_generators(self._streams, state.part("streams"))
