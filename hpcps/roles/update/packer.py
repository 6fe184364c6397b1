"""The update of a worker, made in stages, each of which has its own state.

1. `UpdateChoice`: whether the worker takes part, the blocks that it sends, its delay
2. `UpdateMemory`: the difference of the local steps, and what earlier rounds have left
3. `Attacker`: what the attack makes of it
4. `UpdatePartitions`: the partitions, each for one combiner
5. `UpdateEncoder`: what the compressor makes of each

The memory returns the array that it keeps, `[d]`, and the attack changes it in place. Once the update is packed, the
memory releases the sent blocks: it keeps nothing of them, or the error of their encoding. It keeps the other blocks for
later rounds, and all blocks of a withheld update, although `Choice.sent` may select some of them. So a stage between
both may only change blocks that are sent, and must skip withheld updates. An attack on encodings comes last: it changes
what combiners decode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcps.aggregation.encoding import UpdateEncoder
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, hexadecimal, private
from hpcps.numerics.state import (
    Position,
    State,
    generators_state,
    go_to_positions,
    restore_generators,
    stream_positions,
)
from hpcps.numerics.vectors import on_memory, unpack
from hpcps.protocol.messages import Peer
from hpcps.roles.update.attacker import Attacker
from hpcps.roles.update.choice import UpdateChoice
from hpcps.roles.update.memory import UpdateMemory
from hpcps.roles.update.partitions import UpdatePart, UpdatePartitions
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer

_OF_ATTACKS = ("attacked blocks", "attack noise")
"""The random streams that only attacks need: for the blocks to attack, and for what the attack draws."""


@dataclass(frozen=True)
class Packed:
    """One round's update.

    Attributes:
        parts: its partitions in the order in which they are sent; none if the worker is absent.
        sent: the number of blocks that are sent.
        skipped: the number of blocks that are not.
        attacked: the number of blocks that the attack changed, made late or withheld.
        delay: the seconds that the experiment adds before the update is sent.
        mask: the blocks that are sent `[B]`.
        payload: these blocks, one after another; the payloads of the partitions are parts of it.
        attacked_blocks: the attacked blocks, as a hexadecimal number, if others are sent too; else empty.
        without_feedback: the blocks whose error of encoding is not kept `[B]`; None for none.
        encoded: whether the payloads of the partitions are encoded.
    """

    parts: tuple[UpdatePart, ...]
    sent: int
    skipped: int
    attacked: int
    delay: float
    mask: Mask
    payload: Vector
    attacked_blocks: str = ""
    without_feedback: Mask | None = None
    encoded: bool = False

    def fields(self) -> dict[str, object]:
        """Return the fields of the worker's record."""
        return {
            "participated": bool(self.parts),
            "blocks_sent": self.sent,
            "blocks_skipped": self.skipped,
            "blocks_attacked": self.attacked,
            "delay": self.delay,
            **({"attacked": self.attacked_blocks} if self.attacked_blocks else {}),
        }


class Packer:
    """Makes the update of a worker in stages: choice, memory, attack, partitions, encoding.

    Attributes:
        memory: what the worker keeps of its updates.
        attacker: what the run's attack does to this worker.
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        combiners: tuple[Peer, ...],
        layout: Layout,
        allocate: Allocate,
        local: Allocate = private,
    ) -> None:
        """Prepare the updates of a worker.

        Args:
            peer: the worker.
            run: the run.
            combiners: the processes that get its updates.
            layout: the blocks of the model.
            allocate: returns memory to send from.
            local: returns memory for the vectors of this process.
        """
        self._layout, self._local = layout, local
        purposes = ("participation", "skipping", *_OF_ATTACKS, "delay")
        self._streams = {purpose: generator(run.seed, "worker", peer.index, purpose) for purpose in purposes}
        drawn = [self._streams[purpose] for purpose in _OF_ATTACKS]
        self.attacker = Attacker(
            peer, run.attack, run.topology.workers, run.seed, run.data.facts.classes, layout, *drawn
        )
        self._choice = UpdateChoice(run, len(layout.blocks), self.attacker, self._streams)
        self._partitions = UpdatePartitions(run, combiners, layout, allocate)
        self._encoder = encoder = UpdateEncoder.of(run, layout, self._partitions.all, allocate)
        self.memory = UpdateMemory.of(run, layout, None if encoder is None else encoder.codec, local)
        self._resumes = run.train.mode == "sync"  # see `UpdateDecoder`
        self._others: Vector | None = None  # see `_other_values`

    @property
    def residual(self) -> Vector | None:
        """What is added to the next model `[d]`; None for nothing."""
        return self.memory.residual

    @property
    def encodes(self) -> bool:
        """Whether updates are encoded."""
        return self._encoder is not None

    def pack(self, trainer: Trainer, base: Vector, round: int, epoch: int, abandoned: int | None = None) -> Packed:
        """Return the update of the local steps.

        With a compressor, `encode` encodes the partitions, each before it is sent; all are encoded here if the attack
        acts on what is encoded.

        Args:
            trainer: has the model after the local steps.
            base: the model before them `[d]`.
            round: the round or cycle.
            epoch: the epochs of the run that were over when the round began, as far as the worker knows.
            abandoned: the local steps after which the worker abandoned the round; None if it did not.
        """
        choice = self._choice.draw(round, epoch, abandoned)
        update, sent = self.memory.take(trainer, base, choice), choice.sent
        encodes_first = not choice.withheld and self._encoder is not None and self._encoder.attacked
        attacked = np.zeros_like(sent)
        if not encodes_first:
            attacked = on_memory(lambda values: self.attacker.corrupt(values, sent, round, epoch), update)
        if choice.withheld:
            return Packed((), 0, 0, int(attacked.sum()), choice.delay, sent, self._partitions.nothing())
        packed = self._packed(update, sent, int(attacked.sum()), choice.delay)
        not_kept = np.zeros_like(attacked) if self.attacker.remains else attacked
        self.memory.release(sent, not_kept)
        if encodes_first:
            return self._attack_encoded(packed, round, epoch)
        return replace(packed, attacked_blocks=_hexadecimal(attacked, sent), without_feedback=not_kept & sent)

    def _packed(self, values: Vector, sent: Mask, attacked: int, delay: float) -> Packed:
        """Return the update that the sent blocks of a vector `[d]` are."""
        parts, payload = self._partitions.cut(values, sent)
        return Packed(parts, int(sent.sum()), int((~sent).sum()), attacked, delay, sent, payload)

    def encode(self, packed: Packed, place: int) -> UpdatePart:
        """Return the encoded partition at a place in `packed.parts`; its error enters the residual if it is kept."""
        part, partition = packed.parts[place], self._partitions.all[place]
        if self._encoder is None:
            return part
        errors = None if self.memory.errors is None else self.memory.errors[partition.columns]
        encoded = self._encoder.encode(place, part.mask, part.payload, errors)
        # An attacker does not keep what the encoding of its attack loses.
        if errors is not None and packed.without_feedback is not None:
            for start, stop in partition.layout.runs(packed.without_feedback[partition.blocks]):
                errors[start:stop] = 0
        return replace(part, payload=encoded)

    def crafted(self, packed: Packed, payload: Vector) -> Packed:
        """Return a crafted update: the one that was packed, with other values, of which all are attacked.

        Args:
            packed: the update that was packed last; its payload is overwritten.
            payload: the values of its blocks, one after another.
        """
        values = self._other_values
        unpack(self._layout, payload, packed.mask, values)
        if packed.encoded:
            return self._encode_attacked(replace(packed, attacked=packed.sent), packed.mask, values)
        return replace(self._packed(values, packed.mask, packed.sent, packed.delay), without_feedback=packed.mask)

    @property
    def _other_values(self) -> Vector:
        """Memory for a vector `[d]` beside the update."""
        # Once: memory of a device is not given back before the run ends.
        if self._others is None:
            self._others = self._local(self._layout.size)
        return self._others

    def _attack_encoded(self, packed: Packed, round: int, epoch: int) -> Packed:
        """Encode an update, and let the attack change what combiners decode; the residual is that of an honest worker.

        The payload of the result is what combiners decode: the adversary sees that.
        """
        assert self._encoder is not None, "the specification has been checked"
        values, sent = self._other_values, packed.mask
        parts = tuple(self.encode(packed, place) for place in range(len(packed.parts)))
        for place, part in enumerate(parts):
            self._encoder.decode(place, part.mask, part.payload, values)
        payload = self._partitions.whole(values, sent)
        attacked = self.attacker.corrupt(values, sent, round, epoch)
        stated = _hexadecimal(attacked, sent)
        packed = replace(packed, parts=parts, payload=payload, encoded=True, attacked_blocks=stated)
        return self._encode_attacked(replace(packed, attacked=int(attacked.sum())), attacked, values)

    def _encode_attacked(self, packed: Packed, attacked: Mask, values: Vector) -> Packed:
        """Return an encoded update whose attacked blocks have other values `[d]`."""
        assert self._encoder is not None, "it has been encoded"
        encode = self._encoder.encode_attacked
        self._partitions.spoil_divided(values, attacked)
        given = ((place, part.mask, part.payload) for place, part in enumerate(packed.parts))
        encoded = [encode(*each, attacked, values) for each in given]
        parts = (replace(part, payload=each) for part, each in zip(packed.parts, encoded, strict=True))
        return replace(packed, parts=tuple(parts))

    def position(self) -> Position:
        """Return the position in each random stream."""
        return stream_positions(self._streams)

    def go_to(self, positions: Mapping[str, Sequence[int]]) -> None:
        """Go on from such positions."""
        go_to_positions(self._streams, positions)

    def state(self) -> State:
        """Return what all stages keep."""
        arrays, encoding = self.memory.arrays(), {}
        if self._encoder is not None:
            encoding = self._encoder.state()
            if self._resumes and self._encoder.estimate.size:
                arrays["estimate"] = self._encoder.estimate.copy()
        return State(arrays).having(streams=generators_state(self._streams), attacker=self.attacker.state(), **encoding)

    def honest_state(self) -> State:
        """Return what an honest worker keeps: `state` without what only the attack needs."""
        state, own = self.state(), ("attacker", "attacked_encoding")
        facts = {name: each for name, each in state.facts.items() if name not in own}
        facts["streams"] = {name: each for name, each in facts["streams"].items() if name not in _OF_ATTACKS}
        return State({name: each for name, each in state.arrays.items() if name.split(".")[0] not in own}, facts)

    def restore(self, state: State) -> None:
        """Restore it; an honest state leaves what only the attack needs as it is."""
        self.memory.restore(state.arrays)
        streams = state.part("streams")
        restore_generators({name: each for name, each in self._streams.items() if name in streams.facts}, streams)
        if "attacker" in state.facts:  # a checkpoint of an earlier version does not have it
            self.attacker.restore(state.part("attacker"))
        if self._encoder is not None:
            self._encoder.restore(state)
            if self._resumes and self._encoder.estimate.size:
                self._encoder.estimate[:] = state.arrays["estimate"]


def _hexadecimal(attacked: Mask, sent: Mask) -> str:
    """Return the attacked blocks as a hexadecimal number, if others are sent too; else an empty string."""
    return hexadecimal(attacked) if attacked.any() and (attacked != sent).any() else ""
