"""The messages of runs without servers, from each worker to the next one in the ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages.base import Flag, HeaderField, Message


@dataclass(frozen=True, kw_only=True, eq=False)
class InitialWeights(Message, code=39, kind="INIT", sender="worker", receiver="next worker"):
    """The initial weights, which go from worker to worker once.

    Attributes:
        steps_per_epoch: the number of the coordinator's batches in an epoch.
        statistics: whether evaluations use the mean of all workers' BatchNorm statistics.
        values: the weights `[d]`.
    """

    steps_per_epoch: int
    statistics: bool
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class RingPiece(Message):
    """A piece of a chunk of the vector.

    Attributes:
        round: the round.
        chunk: the index of the chunk. There is one for each worker: its sum begins at the worker of this index.
        piece: the index of the piece within the chunk.
        flags: those of checkpoints that worker 0 has set for this round, as far as the sender has heard of them.
        values: the elements of the piece: of a sum, or of the next model.
    """

    round: int
    chunk: Annotated[int, HeaderField.SHARD]
    piece: Annotated[int, HeaderField.PARTITION]
    flags: Flag
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialSum(RingPiece, code=19, kind="PARTIAL", sender="worker", receiver="next worker"):
    """A piece of the sum of the updates of some workers: those from the worker of the chunk's index to the sender.

    Attributes:
        count: how many of these workers take part in the round; an update of another one is zero.
    """

    count: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class NextModel(RingPiece, code=20, kind="CHUNK", sender="worker", receiver="next worker"):
    """A piece of the next model."""
