"""How a sender encodes what it sends, and how it is decoded: partitions of updates, and tensors of scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np

from hpcps.compression import Codec
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector
from hpcps.numerics.state import Kept, State
from hpcps.numerics.vectors import unpack
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Bounds, Partition
from hpcps.spec.schema import Run


class UpdateEncoder:
    """Encodes the partitions of one worker's updates, each into memory of its own; see `UpdateDecoder`.

    With `ef21` the worker sends the encoded difference of its update to its estimate g, and g ← g + what is decoded
    (Richtárik et al., 2021).

    With `acts_on = "encoding"` an attack changes the values that combiners would decode. A second codec encodes the
    attacked blocks anew: it keeps no error, and its random numbers are not those of the honest encoding.

    Attributes:
        codec: the codec of the run.
        estimate: g of EF21 `[d]`; empty with another memory.
        attacked: whether an attack acts on what is encoded.
    """

    @staticmethod
    def of(run: Run, layout: Layout, partitions: Sequence[Partition], allocate: Allocate) -> UpdateEncoder | None:
        """Return the encoder of a run's updates; None if they are sent as they are.

        Args:
            run: the run.
            layout: the blocks of the d elements.
            partitions: the partitions of an update, in the order in which they are sent.
            allocate: returns memory to send from.
        """
        codec = Codec.of(run.communication.compression, layout)
        second = Codec.of(run.communication.compression, layout) if run.attack.after_encoding else None
        return None if codec is None else UpdateEncoder(codec, second, layout, partitions, allocate)

    def __init__(
        self, codec: Codec, second: Codec | None, layout: Layout, partitions: Sequence[Partition], allocate: Allocate
    ) -> None:
        self.codec, self._second, self._partitions = codec, second, tuple(partitions)
        most = (codec.most_elements(part.layout, part.blocks.start) for part in self._partitions)
        self._rooms = [slice(*bounds) for bounds in pairwise(accumulate(most, initial=0))]
        self._room = allocate(self._rooms[-1].stop)
        self._attacked_room = allocate(self._rooms[-1].stop if second else 0)
        self.estimate = np.zeros(layout.size if codec.estimates else 0, np.float32)
        self.attacked = second is not None

    def encode(self, place: int, mask: Mask, payload: Vector, errors: Vector | None) -> Vector:
        """Return the encoding of a partition, which stays valid until its next update.

        Args:
            place: the place of the partition in the order of sending.
            mask: the blocks of the partition that are sent.
            payload: these blocks, one after another.
            errors: gets what the encoding loses, see `Codec.encode`.
        """
        partition, out = self._partitions[place], self._room[self._rooms[place]]
        of_part = partition.layout, partition.blocks.start, mask, payload
        if self.codec.estimates:
            return self.codec.encode_difference(*of_part, self.estimate[partition.columns], out)
        return self.codec.encode(*of_part, out, errors)

    def decode(self, place: int, mask: Mask, encoded: Vector, out: Vector) -> None:
        """Write what combiners decode of a partition into its places of a vector `[d]`; blocks not sent become zero."""
        partition = self._partitions[place]
        values = self.codec.decode(partition.layout, partition.blocks.start, mask, encoded)
        unpack(partition.layout, values, mask, out[partition.columns])

    def encode_attacked(self, place: int, mask: Mask, encoded: Vector, attacked: Mask, values: Vector) -> Vector:
        """Return the encoding of a partition in which some blocks are encoded anew.

        Args:
            place: the place of the partition in the order of sending.
            mask: the blocks of the partition that are sent.
            encoded: its honest encoding.
            attacked: the blocks that are attacked, of the whole update `[B]`.
            values: their values `[d]`.
        """
        assert self._second is not None, "the attack acts on what is encoded"
        partition = self._partitions[place]
        if not attacked[partition.blocks].any():
            return encoded
        given = attacked[partition.blocks], values[partition.columns], self._attacked_room[self._rooms[place]]
        return self._second.encode_anew(partition.layout, partition.blocks.start, mask, encoded, *given)

    def state(self) -> dict[str, State]:
        """Return what the codecs keep of each block, for a checkpoint; the estimate is saved by its owner."""
        second = {} if self._second is None else {"attacked_encoding": self._second.state()}
        return {"encoding": self.codec.state(), **second}

    def restore(self, state: State) -> None:
        """Restore it from the state of the owner."""
        self.codec.restore(state.part("encoding"))
        if self._second is not None:
            self._second.restore(state.part("attacked_encoding"))


class UpdateDecoder:
    """Decodes updates, or parts of them; with EF21, keeps the estimate of each worker, which its update changes.

    An update that a round drops changes the estimate too: the worker does not know that it was dropped.
    """

    @staticmethod
    def of(run: Run, layout: Layout, bounds: Bounds | None = None) -> UpdateDecoder:
        """Return the decoder for a slice of the model, by default all of it."""
        start, stop = bounds or (0, layout.size)
        codec = Codec.of(run.communication.compression, layout)
        return UpdateDecoder(codec, layout.first_in(start), stop - start, run.train.mode == "sync")

    def __init__(self, codec: Codec | None = None, first_block: int = 0, size: int = 0, resumes: bool = True) -> None:
        """Begin without estimates.

        Args:
            codec: the codec of the run; None if updates are sent as they are.
            first_block: the index in the model of the first block of the slice.
            size: the number of elements of the slice.
            resumes: whether checkpoints contain estimates. The asynchronous ones do not: updates that are on their way
                are lost, so workers and combiners begin again at zero.
        """
        self._codec, self._first_block, self._size, self._resumes = codec, first_block, size, resumes
        self._estimates: dict[Peer, Vector] = {}

    def __call__(self, sender: Peer, mask: Mask, encoded: Vector, partition: Partition) -> tuple[Vector, str | None]:
        """Return the values of a partition, one block after another, and what is wrong with it; None if nothing is.

        Args:
            sender: the worker.
            mask: the blocks that it sends `[B]`.
            encoded: these blocks, or what the compressor made of them.
            partition: the partition.
        """
        layout, codec = partition.layout, self._codec
        if codec is None:
            return encoded, wrong_blocks(mask, encoded, layout)
        reason = wrong_mask(mask, layout)
        if reason or not mask.size:
            return encoded, reason
        first = self._first_block + partition.blocks.start
        try:
            if not codec.estimates:
                return codec.decode(layout, first, mask, encoded), None
            if sender not in self._estimates:
                self._estimates[sender] = np.zeros(self._size, np.float32)
            estimate = self._estimates[sender][partition.columns]
            return codec.decode_difference(layout, first, mask, encoded, estimate), None
        except ValueError as error:
            return encoded, str(error)

    @property
    def kept(self) -> Mapping[str, Kept]:
        """What a checkpoint contains of the decoder."""
        return {"estimates": self} if self._codec is not None and self._codec.estimates and self._resumes else {}

    def state(self) -> State:
        """Return the estimates."""
        return State({str(worker.index): estimate.copy() for worker, estimate in self._estimates.items()})

    def restore(self, state: State) -> None:
        """Restore the estimates."""
        self._estimates = {Peer("worker", int(index)): values.copy() for index, values in state.arrays.items()}


def wrong_mask(mask: Mask, layout: Layout) -> str | None:
    """Return what is wrong with an update's mask for this layout; None if nothing is."""
    covered = len(mask)
    return None if covered == len(layout.blocks) else f"its mask covers {covered} blocks of {len(layout.blocks)}"


def wrong_blocks(mask: Mask, values: Vector, layout: Layout) -> str | None:
    """Return what is wrong with an update's mask or size for this layout; None if nothing is."""
    if reason := wrong_mask(mask, layout):
        return reason
    got, want = values.size, layout.packed_size(mask)
    return None if got == want else f"its payload has {got} elements where its mask announces {want}"
