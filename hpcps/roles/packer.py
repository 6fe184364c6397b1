"""The update of a worker: what it sends of its local steps, the attack on it, and the residual that it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, hexadecimal, private
from hpcps.numerics.state import State, generators_state, restore_generators
from hpcps.numerics.vectors import finite, on_host, on_memory, pack, unpack
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of
from hpcps.roles.attacker import Attacker
from hpcps.roles.update_encoder import UpdateEncoder
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer


@dataclass(frozen=True)
class UpdatePart:
    """One partition of an update: its combiner, its number there, the mask of its sent blocks, and their payload.

    Until `Packer.encode` encodes it, the payload is these blocks, one after another.
    """

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
        attacked: the number of blocks that the attack changed, made late or withheld.
        delay: the seconds that the experiment adds before the update is sent.
        mask: the blocks that are sent `[B]`.
        payload: these blocks, one after another; the payloads of the partitions are parts of it.
        attacked_blocks: the attacked blocks, as a hexadecimal number, if others are sent too; else empty.
        lost: the blocks whose error of encoding is not kept `[B]`; None for none.
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
    lost: Mask | None = None
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
    """Makes updates with error reset: the worker keeps what it does not send, and adds it to the next model.

    With the memory `residual` of a compressor it keeps the error of the encoding too, and adds the residual to its next
    update instead of the model (error feedback; Seide et al., 2014): what it has sent and the residual add up to the
    differences that all its steps made. With `nesterov`, Δ + μm replaces the difference Δ, where m ← μm + Δ.
    With `ef21` it sends the encoded difference to its estimate g, and g ← g + what is decoded (Richtárik et al., 2021).

    Attributes:
        delta: ZenoPS's Δ `[d]` and, once an update is packed, its residual e; undefined if every block was sent.
        feeds_back: whether the residual is added to the next update, not to the next model.
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
        self._run = run
        self._layout = layout
        updates = partitioning_of(run, layout).updates
        # In turns, so that all combiners work at the same time.
        numbered = sorted((n, combiner) for combiner in combiners for n in range(len(updates[combiner.index])))
        slices = ((n, combiner, updates[combiner.index][n]) for n, combiner in numbered)
        self._partitions = tuple((combiner, n, Partition.of(layout, bounds)) for n, combiner, bounds in slices)
        # The blocks that are sent in several partitions, to one combiner or to several servers.
        pieces: dict[int, list[slice]] = {}
        for _, _, partition in self._partitions:
            for index, block in enumerate(partition.layout.blocks, partition.blocks.start):
                start = partition.columns.start + block.offset
                pieces.setdefault(index, []).append(slice(start, start + block.size))
        # The payloads of partitions are contiguous in the payload of the whole update, in the order of their columns.
        self._positions = sorted(range(len(self._partitions)), key=lambda n: self._partitions[n][2].columns.start)
        self._divided = tuple((index, slices) for index, slices in pieces.items() if len(slices) > 1)
        self._local = local
        self.delta = local(layout.size)
        self.delta[:] = 0
        self._keeps = False
        self._outgoing = allocate(layout.size)
        self._encoder = encoder = UpdateEncoder.of(run, layout, [part for _, _, part in self._partitions], allocate)
        codec = None if encoder is None else encoder.codec
        self.feeds_back = codec is not None and codec.feeds_back
        self._steps = private(layout.size if self.feeds_back else 0)
        self._resumes = run.train.mode == "sync"  # see `UpdateDecoder`
        # What checkpoints contain beside the residual: μ and m, if there are any, and EF21's g.
        self._decay = np.float32(0.0 if codec is None else codec.momentum)
        self._momentum = np.zeros(layout.size if self._decay else 0, np.float32)
        self._loses = run.train.abandoned == "lost"
        self._grows = run.train.mode == "async" and run.asynchronous.absent == "accumulate"
        self._replacement: Vector | None = None
        purposes = ("participation", "skipping", "attacked blocks", "attack noise", "delay")
        self._streams = {purpose: generator(run.seed, "worker", peer.index, purpose) for purpose in purposes}
        choice, noise = self._streams["attacked blocks"], self._streams["attack noise"]
        self.attacker = Attacker(
            peer, run.attack, run.topology.workers, run.seed, run.data.facts.classes, layout, choice, noise
        )

    @property
    def residual(self) -> Vector | None:
        """What is added to the next model `[d]`; None if all was sent, or if it is added to the next update."""
        return self.delta if self._keeps and not self.feeds_back else None

    def pack(self, trainer: Trainer, base: Vector, round: int, epoch: int, abandoned: int | None = None) -> Packed:
        """Compute Δ since `base`, choose the blocks to send, attack and pack them, and keep the rest.

        With a compressor, `encode` encodes the partitions, each before it is sent; all are encoded here if the attack
        acts on what is encoded.

        Every draw is made in every round, so that the streams do not depend on what earlier draws decided.

        Args:
            trainer: has the model after the local steps.
            base: the model before them `[d]`.
            round: the round or cycle.
            epoch: the epochs of the run that were over when the round began, as far as the worker knows.
            abandoned: the local steps after which the worker abandoned the round; None if it did not.
        """
        run, layout, delta = self._run, self._layout, self.delta
        if not self.feeds_back:
            trainer.copy_to(delta)
            delta -= base
        participates = self._streams["participation"].random() < run.communication.participation
        participates = participates and abandoned is None
        kept = self._streams["skipping"].random(len(layout.blocks)) >= run.communication.skip_rate
        sent = kept & participates
        withheld = not participates or self.attacker.withholds(round, epoch)
        self._keeps = self.feeds_back or withheld or not sent.all()
        # A worker whose update grows goes on from its own network, whose next difference contains these steps.
        if self.feeds_back and not (withheld and self._grows) and not (abandoned is not None and self._loses):
            self._add_steps(trainer, base)
        later = not withheld and self._encoder is not None and self._encoder.attacked
        attacked = np.zeros_like(sent)
        if not later:
            attacked = on_memory(lambda values: self.attacker.corrupt(values, sent, round, epoch), delta)
        delay = run.heterogeneity.delay.draw(self._streams["delay"]) + self.attacker.delay(round, epoch)
        if abandoned is not None:
            delay = 0.0
            if self._loses and not self.feeds_back:
                delta[:] = 0
        if withheld:
            return Packed((), 0, 0, int(attacked.sum()), delay, sent, self._outgoing[:0])
        packed = self._pack(delta, sent, int(attacked.sum()), delay)
        if self._keeps:
            for start, stop in layout.runs(attacked & sent if self.feeds_back else sent):
                delta[start:stop] = 0
        if later:
            return self._attack_encoded(packed, round, epoch)
        return replace(packed, attacked_blocks=_hexadecimal(attacked, sent), lost=attacked & sent)

    def _add_steps(self, trainer: Trainer, base: Vector) -> None:
        """Add the difference that the local steps made to the residual; it replaces a residual that is not finite."""
        trainer.copy_to(self._steps)
        self._steps -= base
        if self._momentum.size:
            self._momentum *= self._decay
            self._momentum += self._steps
            if not finite(self._momentum):
                self._momentum[~np.isfinite(self._momentum)] = 0
            self._steps += self._decay * self._momentum
        self.delta += self._steps
        if not finite(self.delta):
            for block in self._layout.blocks:
                part = slice(block.offset, block.stop)
                if not finite(self.delta[part]):
                    self.delta[part] = self._steps[part]

    def replaced(self, packed: Packed, payload: Vector) -> Packed:
        """Return an update with other values, of which all are attacked.

        Args:
            packed: the update that was packed last; its payload is overwritten.
            payload: the values of its blocks, one after another.
        """
        values = self._other_values
        unpack(self._layout, payload, packed.mask, values)
        if packed.encoded:
            return self._encode_attacked(replace(packed, attacked=packed.sent), packed.mask, values)
        return replace(self._pack(values, packed.mask, packed.sent, packed.delay), lost=packed.mask)

    @property
    def _other_values(self) -> Vector:
        """Memory for a vector that is not Δ `[d]`."""
        # Once: memory of a device is not given back before the run ends.
        if self._replacement is None:
            self._replacement = self._local(self._layout.size)
        return self._replacement

    def _attack_encoded(self, packed: Packed, round: int, epoch: int) -> Packed:
        """Encode an update, and let the attack change what combiners decode; the residual is that of an honest worker.

        The payload of the result is what combiners decode: the adversary sees that.
        """
        assert self._encoder is not None, "the specification has been checked"
        values, sent = self._other_values, packed.mask
        parts = tuple(self.encode(packed, place) for place in range(len(packed.parts)))
        for place, part in enumerate(parts):
            self._encoder.decode(place, part.mask, part.payload, values)
        payload = pack(self._layout, values, sent, self._outgoing)
        attacked = self.attacker.corrupt(values, sent, round, epoch)
        stated = _hexadecimal(attacked, sent)
        packed = replace(packed, parts=parts, payload=payload, encoded=True, attacked_blocks=stated)
        return self._encode_attacked(replace(packed, attacked=int(attacked.sum())), attacked, values)

    def _encode_attacked(self, packed: Packed, attacked: Mask, values: Vector) -> Packed:
        """Return an encoded update whose attacked blocks have other values `[d]`."""
        assert self._encoder is not None, "it has been encoded"
        encode = self._encoder.encode_attacked
        self._spoil_divided(values, attacked)
        given = ((place, part.mask, part.payload) for place, part in enumerate(packed.parts))
        words = [encode(*each, attacked, values) for each in given]
        parts = (replace(part, payload=each) for part, each in zip(packed.parts, words, strict=True))
        return replace(packed, parts=tuple(parts))

    def _spoil_divided(self, values: Vector, sent: Mask) -> None:
        """Make the sent blocks of a vector `[d]` that are divided and not finite NaN.

        Combiners refuse a block that is not finite as a whole, so every partition of it must be not finite.
        """
        for index, slices in self._divided:
            if sent[index] and not all(finite(values[piece]) for piece in slices):
                for piece in slices:
                    values[piece] = np.nan

    def _pack(self, values: Vector, sent: Mask, attacked: int, delay: float) -> Packed:
        """Pack the sent blocks of a vector `[d]`."""
        self._spoil_divided(values, sent)
        payload = pack(self._layout, values, sent, self._outgoing)
        parts: dict[int, UpdatePart] = {}
        position = 0
        for place in self._positions:
            combiner, number, partition = self._partitions[place]
            mask = sent[partition.blocks]
            stop = position + partition.layout.packed_size(mask)
            parts[place] = UpdatePart(combiner, number, mask, payload[position:stop])
            position = stop
        ordered = tuple(parts[place] for place in range(len(parts)))
        return Packed(ordered, int(sent.sum()), int((~sent).sum()), attacked, delay, sent, payload)

    @property
    def encodes(self) -> bool:
        """Whether updates are encoded."""
        return self._encoder is not None

    def encode(self, packed: Packed, place: int) -> UpdatePart:
        """Return the encoded partition at a place in `packed.parts`; its error enters the residual if it is kept."""
        part, (_, _, partition) = packed.parts[place], self._partitions[place]
        if self._encoder is None:
            return part
        errors = self.delta[partition.columns] if self.feeds_back else None
        words = self._encoder.encode(place, part.mask, part.payload, errors)
        # An attacker does not keep what the encoding of its attack loses.
        if errors is not None and packed.lost is not None:
            for start, stop in partition.layout.runs(packed.lost[partition.blocks]):
                errors[start:stop] = 0
        return replace(part, payload=words)

    @property
    def _checkpointed(self) -> dict[str, Vector]:
        """The vectors that checkpoints contain beside the residual."""
        estimate = self._momentum[:0] if self._encoder is None or not self._resumes else self._encoder.estimate
        found = {"momentum": self._momentum, "estimate": estimate}
        return {name: values for name, values in found.items() if values.size}

    def state(self) -> State:
        """Return the residual, the random streams and what the attacker keeps."""
        streams, attacker = generators_state(self._streams), self.attacker.state()
        encoding = {} if self._encoder is None else self._encoder.state()
        arrays = {"residual": on_host(self.delta) if self._keeps else np.zeros(self._layout.size, np.float32)}
        arrays |= {name: values.copy() for name, values in self._checkpointed.items()}
        return State(arrays).having(streams=streams, attacker=attacker, **encoding)

    def restore(self, state: State) -> None:
        """Restore the residual, the random streams and what the attacker keeps."""
        self.delta[:] = state.arrays["residual"]
        self._keeps = bool(state.arrays["residual"].any())
        for name, values in self._checkpointed.items():
            values[:] = state.arrays[name]
        restore_generators(self._streams, state.part("streams"))
        if "attacker" in state.facts:  # a checkpoint of an earlier version does not have it
            self.attacker.restore(state.part("attacker"))
        if self._encoder is not None:
            self._encoder.restore(state)


def _hexadecimal(attacked: Mask, sent: Mask) -> str:
    """Return the attacked blocks as a hexadecimal number, if others are sent too; else an empty string."""
    return hexadecimal(attacked) if attacked.any() and (attacked != sent).any() else ""
