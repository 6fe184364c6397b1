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
        steps_per_epoch: the batches of the coordinator in an epoch.
        statistics: whether BatchNorm statistics are averaged.
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
        chunk: the number of the chunk.
        piece: the number of the piece within the chunk.
        flags: what the checkpoint coordinator says of checkpoints, as far as the sender has heard of it.
        values: the elements of the piece.
    """

    round: int
    chunk: Annotated[int, HeaderField.SHARD]
    piece: Annotated[int, HeaderField.PARTITION]
    flags: Flag
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialSum(RingPiece, code=19, kind="PARTIAL", sender="worker", receiver="next worker"):
    """The sum of some updates.

    Attributes:
        count: the number of workers in the sum that take part in the round.
    """

    count: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class NextModel(RingPiece, code=20, kind="CHUNK", sender="worker", receiver="next worker"):
    """A piece of the next model."""
