"""A worker and its update: what it sends of its local steps, the attack on it, and the residual it keeps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from hpcps.compression import Codec
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, hexadecimal, private
from hpcps.numerics.state import Kept, State, generators_state, restore_generators
from hpcps.numerics.vectors import finite, on_host, on_memory, pack, unpack
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of
from hpcps.roles.attacker import Attacker
from hpcps.roles.events import Compute, Computed, Effect, Event, Now, Pause, Resumed, Stage
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.resources import Resources
from hpcps.roles.training_role import TrainingRole
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
    differences that all its steps made. With `nesterov` these are m's: m ← μm + Δ, and Δ + μm enters the residual.
    With `ef21` it sends the encoded difference to its estimate g, and g ← g + what is decoded (Richtárik et al., 2021).

    Attributes:
        delta: ZenoPS's Δ `[d]` and, once an update is packed, its residual e.
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
        self._outgoing = allocate(layout.size)
        self._codec = codec = Codec.of(run.communication.compression, layout)
        if codec is not None:
            parts = (partition for _, _, partition in self._partitions)
            rooms = accumulate((codec.most_words(part.layout, part.blocks.start) for part in parts), initial=0)
            self._rooms = [slice(*bounds) for bounds in pairwise(rooms)]
            self._words = allocate(self._rooms[-1].stop)
        self.feeds_back = codec is not None and codec.feeds_back
        self._steps = private(layout.size if self.feeds_back else 0)
        self._resumes = run.train.mode == "sync"  # see `UpdateDecoder`
        # What checkpoints contain beside the residual: m and g, if there are any.
        self._momentum = np.zeros(layout.size if codec is not None and codec.momentum else 0, np.float32)
        self._estimate = np.zeros(layout.size if codec is not None and codec.estimates else 0, np.float32)
        self._loses = run.train.abandoned == "lost"
        self._grows = run.train.mode == "async" and run.asynchronous.absent == "accumulate"
        self._replacement: Vector | None = None
        purposes = ("participation", "skipping", "attacked blocks", "attack noise", "delay")
        self._streams = {purpose: generator(run.seed, "worker", peer.index, purpose) for purpose in purposes}
        choice, noise = self._streams["attacked blocks"], self._streams["attack noise"]
        self.attacker = Attacker(
            peer, run.attack, run.topology.workers, run.seed, run.data.facts.classes, layout, choice, noise
        )

    def pack(self, trainer: Trainer, base: Vector, round: int, epoch: int, abandoned: int | None = None) -> Packed:
        """Compute Δ since `base`, choose the blocks to send, attack and pack them, and keep the rest.

        With a compressor, `encode` encodes the partitions, each before it is sent.

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
        # A worker whose update grows goes on from its own network, whose next difference contains these steps.
        if self.feeds_back and not (withheld and self._grows) and not (abandoned is not None and self._loses):
            self._add_steps(trainer, base)
        attacked = on_memory(lambda values: self.attacker.corrupt(values, sent, round, epoch), delta)
        delay = run.heterogeneity.delay.draw(self._streams["delay"]) + self.attacker.delay(round, epoch)
        if abandoned is not None:
            delay = 0.0
            if self._loses and not self.feeds_back:
                delta[:] = 0
        if withheld:
            return Packed((), 0, 0, int(attacked.sum()), delay, sent, self._outgoing[:0])
        packed = self._pack(delta, sent, int(attacked.sum()), delay)
        for start, stop in layout.runs(attacked & sent if self.feeds_back else sent):
            delta[start:stop] = 0
        some = attacked.any() and (attacked != sent).any()
        return replace(packed, attacked_blocks=hexadecimal(attacked) if some else "", lost=attacked & sent)

    def _add_steps(self, trainer: Trainer, base: Vector) -> None:
        """Add the difference that the local steps made to the residual; blocks that are not finite begin at it anew."""
        trainer.copy_to(self._steps)
        self._steps -= base
        if self._codec is not None and self._momentum.size:
            self._momentum *= np.float32(self._codec.momentum)
            self._momentum += self._steps
            if not finite(self._momentum):
                self._momentum[~np.isfinite(self._momentum)] = 0
            self._steps += np.float32(self._codec.momentum) * self._momentum
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
        # Once: memory of a device is not given back before the run ends.
        if self._replacement is None:
            self._replacement = self._local(self._layout.size)
        values = self._replacement
        unpack(self._layout, payload, packed.mask, values)
        return replace(self._pack(values, packed.mask, packed.sent, packed.delay), lost=packed.mask)

    def _pack(self, values: Vector, sent: Mask, attacked: int, delay: float) -> Packed:
        """Pack the sent blocks of a vector `[d]`; those that are divided and not finite become NaN."""
        for index, slices in self._divided:
            # Combiners refuse a block that is not finite as a whole, so every partition of it must be not finite.
            if sent[index] and not all(finite(values[piece]) for piece in slices):
                for piece in slices:
                    values[piece] = np.nan
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
        return self._codec is not None

    def encode(self, packed: Packed, place: int) -> UpdatePart:
        """Return the encoded partition at a place in `packed.parts`; its error enters the residual if it is kept."""
        part, (_, _, partition), codec = packed.parts[place], self._partitions[place], self._codec
        if codec is None:
            return part
        columns, blocks = partition.columns, partition.blocks
        of_part, out = (partition.layout, blocks.start, part.mask, part.payload), self._words[self._rooms[place]]
        if codec.estimates:
            return replace(part, payload=codec.encode_difference(*of_part, self._estimate[columns], out))
        errors = self.delta[columns] if self.feeds_back else None
        words = codec.encode(*of_part, out, errors)
        # An attacker does not keep what the encoding of its attack loses.
        if errors is not None and packed.lost is not None:
            for start, stop in partition.layout.runs(packed.lost[blocks]):
                errors[start:stop] = 0
        return replace(part, payload=words)

    @property
    def _further(self) -> dict[str, Vector]:
        """The vectors that checkpoints contain beside the residual."""
        found = {"momentum": self._momentum, "estimate": self._estimate if self._resumes else self._estimate[:0]}
        return {name: values for name, values in found.items() if values.size}

    def state(self) -> State:
        """Return the residual, the random streams and what the attacker keeps."""
        streams, attacker = generators_state(self._streams), self.attacker.state()
        encoding = {} if self._codec is None else {"encoding": self._codec.state()}
        arrays = {"residual": on_host(self.delta)}
        arrays |= {name: values.copy() for name, values in self._further.items()}
        return State(arrays).having(streams=streams, attacker=attacker, **encoding)

    def restore(self, state: State) -> None:
        """Restore the residual, the random streams and what the attacker keeps."""
        self.delta[:] = state.arrays["residual"]
        for name, values in self._further.items():
            values[:] = state.arrays[name]
        restore_generators(self._streams, state.part("streams"))
        if "attacker" in state.facts:  # a checkpoint of an earlier version does not have it
            self.attacker.restore(state.part("attacker"))
        if self._codec is not None:
            self._codec.restore(state.part("encoding"))


class Worker(TrainingRole):
    """A worker: it makes an update of its local steps; its packer keeps what it did not send.

    ZenoPS's c is the base of the training, x is the trainer's model, Δ and e are the packer's.
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        trainer: Trainer,
        resources: Resources,
        combiners: tuple[Peer, ...],
        inbox: ModelInbox | None = None,
    ) -> None:
        """Prepare a worker that sends its updates to `combiners`."""
        self._packer = Packer(peer, run, combiners, trainer.layout, resources.allocate, resources.local)
        self._packed: Packed | None = None
        super().__init__(peer, run, trainer, resources, inbox)

    @property
    def kept(self) -> Mapping[str, Kept]:
        return {"packer": self._packer}

    @property
    def residual(self) -> Vector | None:
        return None if self._packer.feeds_back else self._packer.delta

    def see_model(self, read: Callable[[Vector], None]) -> None:
        self._packer.attacker.see_model(read)

    def after_steps(self) -> Iterator[Effect]:
        """Make the update of the local steps."""
        training = self._training
        training.stage = Stage.PACKING
        pack = partial(
            self._packer.pack, self._trainer, training.base, self.round, training.log_epoch, training.abandoned
        )
        yield Compute("pack", pack, elements=training.base.size)

    @abstractmethod
    def after_packing(self, packed: Packed) -> Iterator[Effect]:
        """Go on with the update once it is packed, and delayed if the experiment says so."""

    def _go_on(self, event: Event) -> Iterator[Effect]:
        """React to an event of the own training and packing."""
        match event:
            case Computed("pack", packed):
                self._packed = packed
                yield from (Pause(packed.delay),) if packed.delay else self.after_packing(packed)
            case Resumed():
                assert self._packed is not None, "it has been packed"
                yield from self.after_packing(self._packed)
            case _:
                yield from self._training.handle(event)

    def encoded(self, packed: Packed, place: int) -> Generator[Effect, None, UpdatePart]:
        """Return the encoded partition at a place in `packed.parts`; others are on their way meanwhile."""
        parts = [packed.parts[place]]
        if self._packer.encodes:

            def encode() -> None:
                parts[0] = self._packer.encode(packed, place)

            yield Now("pack", encode, elements=parts[0].payload.size)
        return parts[0]
