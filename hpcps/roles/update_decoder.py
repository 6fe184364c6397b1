"""How a combiner decodes the updates of workers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcps.compression import Codec
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.state import Kept, State
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Bounds, Partition
from hpcps.roles.checks import wrong_blocks, wrong_mask
from hpcps.spec.schema import Run


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

    def __call__(self, sender: Peer, mask: Mask, words: Vector, partition: Partition) -> tuple[Vector, str | None]:
        """Return the values of a partition, one block after another, and what is wrong with it; None if nothing is.

        Args:
            sender: the worker.
            mask: the blocks that it sends `[B]`.
            words: these blocks, or what the compressor made of them.
            partition: the partition.
        """
        layout, codec = partition.layout, self._codec
        if codec is None:
            return words, wrong_blocks(mask, words, layout)
        reason = wrong_mask(mask, layout)
        if reason or not mask.size:
            return words, reason
        first = self._first_block + partition.blocks.start
        try:
            if not codec.estimates:
                return codec.decode(layout, first, mask, words), None
            if sender not in self._estimates:
                self._estimates[sender] = np.zeros(self._size, np.float32)
            estimate = self._estimates[sender][partition.columns]
            return codec.decode_difference(layout, first, mask, words, estimate), None
        except ValueError as error:
            return words, str(error)

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
