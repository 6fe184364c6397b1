"""Averagers: how the workers of a run without servers average their updates, in a ring or by Allreduce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hpcps.errors import RunError
from hpcps.numerics.exact_sum import add_mean, exponents, to_units
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.protocol.messages import Flag, NextModel, PartialSum, Peer, RingPiece
from hpcps.protocol.received import Malformed, Received, Reduced
from hpcps.protocol.roster import Roster
from hpcps.roles.checks import not_finite, wrong_size
from hpcps.roles.events import Effect, Join, Now, Reduce, Send
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Contribution:
    """What a worker adds to the sum of a round.

    Attributes:
        round: the round.
        values: its update `[d]`, finite; 0 where it sends nothing. The exchange overwrites it.
        count: 1, or 0 if the worker does not take part.
        flags: what the checkpoint coordinator says of checkpoints.
    """

    round: int
    values: Vector
    count: int
    flags: Flag


class Averager(Protocol):
    """Adds the mean of a round's updates to the model of this worker.

    Attributes:
        done: whether no exchange is under way.
        flags: what the checkpoint coordinator said of checkpoints in the last exchange.
        needs: the workers without whose messages the worker cannot go on.
        waiting_for: the workers that the exchange waits for.
    """

    done: bool
    flags: Flag
    needs: tuple[Peer, ...]
    waiting_for: tuple[Peer, ...]

    def start(self) -> Iterator[Effect]:
        """Prepare the exchanges, before the first round."""

    def begin(self, own: Contribution) -> Iterator[Effect]:
        """Begin the exchange of a round."""

    def takes(self, event: Received | Malformed | Reduced) -> bool:
        """Return whether an event belongs to the exchange."""

    def take(self, event: Received | Malformed | Reduced, round: int) -> Iterator[Effect]:
        """Go on with the exchange of a round, which may not have begun yet."""


class AllreduceAverager(Averager):
    """Adds the mean of n updates x_0, … x_(n-1) `[d]` to the model w `[d]`, of which m take part.

    MPI does not define the order of a sum, so the sum is made exact (`numerics/exact_sum.py`):

        e = max over k of exponents(x_k)                for each block: Allreduce(MAX)
        s = sum over k of to_units(x_k, e, n)           Allreduce(SUM) in float64, exact in any order
        w = w + float32(s in units of 2^(e + ceil(log2 n) - 53) / m)

    The flags of the checkpoint coordinator are one more element of the maximum, m is one more element of the sum.
    Nobody computes local steps during the sum: it begins when all have given their exponents.
    """

    def __init__(self, peer: Peer, run: Run, layout: Layout, model: Vector) -> None:
        """Prepare the averaging of one worker.

        Args:
            peer: the worker.
            run: the run.
            layout: the blocks of the model.
            model: the model `[d]`; each exchange changes it.
        """
        self.done, self.flags = True, Flag.NONE
        self.needs: tuple[Peer, ...] = ()
        self._workers = Roster.of(run).readers()
        self.waiting_for = tuple(worker for worker in self._workers if worker != peer)
        self._layout = layout
        self._model = model
        self._units: NDArray[np.float64] = np.empty(layout.size + 1)
        self._exponents: NDArray[np.int64] = np.empty(len(layout.blocks), np.int64)
        self._own: Contribution | None = None

    def start(self) -> Iterator[Effect]:
        yield Join(self._workers)

    def begin(self, own: Contribution) -> Iterator[Effect]:
        self._own, self.done = own, False
        yield Reduce(np.append(exponents(self._layout, own.values), int(own.flags)), "max")

    def takes(self, event: Received | Malformed | Reduced) -> bool:
        return isinstance(event, Reduced)

    def take(self, event: Received | Malformed | Reduced, round: int) -> Iterator[Effect]:
        assert isinstance(event, Reduced), "it takes no others"
        own, count = self._own, len(self._workers)
        if own is not None:
            self._own = None
            self.flags, self._exponents = Flag(int(event.values[-1])), event.values[:-1]
            scale = partial(to_units, self._layout, own.values, self._exponents, count, self._units[:-1])
            yield Now("apply", scale, elements=self._layout.size)
            self._units[-1] = own.count
            yield Reduce(self._units, "sum", soon=True)
            return
        divisor = max(1, int(self._units[-1]))
        add = partial(add_mean, self._layout, self._units[:-1], self._exponents, count, divisor, self._model)
        yield Now("apply", add, elements=self._layout.size)
        self.done = True


_Piece = tuple[int, int]
"""A chunk, and the number of a piece of it."""


class RingAverager(Averager):
    """Adds the mean of n updates x_0, … x_(n-1) `[d]` to the model w `[d]`, of which m take part.

    The vector has n chunks, `layout.bounds(n)`. In float32:

        s = x_c                                   in chunk c
        s = s + x_k                               for k = c + 1, …, c + n - 1, modulo n
        w = w + s / m                             where s is finite; else w stays as it is

    Chunk c begins at worker c and goes from worker to worker, and each adds its own update. So worker c - 1 has the
    sum. It makes the chunk of the next model, which goes once around the ring. An element whose sum overflows float32
    does not enter the model; that worker records the block as rejected.

    Chunks consist of pieces of at most `transport.partition` bytes, each of which goes around the ring by itself. Every
    worker sends 2 (n - 1) / n of the vector in a round. The flags of the checkpoint coordinator are in all messages: no
    worker is done before the first chunk, which begins at that coordinator, has come to it.
    """

    def __init__(self, peer: Peer, run: Run, layout: Layout, model: Vector) -> None:
        """Prepare the averaging of one worker.

        Args:
            peer: the worker.
            run: the run.
            layout: the blocks of the model.
            model: the model `[d]`; each exchange changes it.
        """
        self.done, self.flags = True, Flag.NONE
        self._peer = peer
        self._layout = layout
        self._model = model
        self._count = n = run.topology.workers
        before = Peer("worker", (peer.index - 1) % n)
        self._after = Peer("worker", (peer.index + 1) % n)
        self.needs: tuple[Peer, ...] = (before,) if n > 1 else ()
        self.waiting_for: tuple[Peer, ...] = self.needs
        self._pieces = dict(_pieces(layout, n, run.transport.partition))
        first, last = peer.index, (peer.index + 1) % n
        # What comes from the worker before in a round: sums of all chunks but the one that begins here, and the new
        # model but for the chunk that is summed up here.
        self._expected: set[tuple[type[RingPiece], _Piece]] = set()
        self._expected |= {(PartialSum, piece) for piece in self._pieces if piece[0] != first}
        self._expected |= {(NextModel, piece) for piece in self._pieces if piece[0] != last}
        self._owed = set(self._expected)
        self._early: list[RingPiece] = []
        self._own: Contribution | None = None

    def start(self) -> Iterator[Effect]:
        yield from ()

    def begin(self, own: Contribution) -> Iterator[Effect]:
        self._own, self.flags, self.done = own, own.flags, False
        for piece, where in self._pieces.items():
            if piece[0] == self._peer.index:
                yield from self._pass_on_sum(piece, where, own.count)
        early, self._early = self._early, []
        for message in early:
            yield from self._use(message)
        self._end_when_complete()

    def takes(self, event: Received | Malformed | Reduced) -> bool:
        return isinstance(event, Received) and isinstance(event.message, RingPiece) and event.source in self.needs

    def take(self, event: Received | Malformed | Reduced, round: int) -> Iterator[Effect]:
        # The worker before may be in the next round already.
        assert isinstance(event, Received), "it takes no others"
        assert isinstance(event.message, RingPiece), "it takes no others"
        message = event.message
        if reason := self._wrong(message, round):
            raise RunError(f"{self._peer} cannot use what {event.source} sent in round {round}: {reason}")
        self._owed.remove((type(message), (message.chunk, message.piece)))
        if self.done:
            self._early.append(message)
        else:
            yield from self._use(message)
            self._end_when_complete()

    def _end_when_complete(self) -> None:
        if not self._owed:
            self.done, self._owed = True, set(self._expected)

    def _wrong(self, message: RingPiece, round: int) -> str | None:
        """Return what is wrong with a message; None if nothing is."""
        piece = message.chunk, message.piece
        what = f"the {message.kind} of piece {piece[1]} of chunk {piece[0]} of round {message.round}"
        if message.round != round:
            return f"it is {what}"
        if (type(message), piece) not in self._owed or (self.done and isinstance(message, NextModel)):
            return f"it does not expect {what}"
        where = self._pieces[piece]
        return wrong_size(message.values, where.stop - where.start)

    def _use(self, message: RingPiece) -> Iterator[Effect]:
        """Add the own update to a sum, or take a piece of the next model; pass it on."""
        assert self._own is not None, "the exchange has begun"
        piece = message.chunk, message.piece
        where = self._pieces[piece]
        self.flags |= message.flags
        elements = where.stop - where.start
        if isinstance(message, PartialSum):
            mine = self._own.values[where]
            yield Now("apply", partial(np.add, message.values, mine, out=mine), elements=2 * elements)
            yield from self._pass_on_sum(piece, where, message.count + self._own.count)
        else:
            yield Now("apply", partial(np.copyto, self._model[where], message.values), elements=elements)
            yield from self._pass_on_model(piece, where)

    def _pass_on_sum(self, piece: _Piece, where: slice, count: int) -> Iterator[Effect]:
        """Send a sum to the next worker; the last worker of the chunk adds the mean to its model."""
        assert self._own is not None, "the exchange has begun"
        if self._after.index != piece[0]:
            chunk, number = piece
            values = self._own.values[where]
            total = PartialSum(
                round=self._own.round, chunk=chunk, piece=number, flags=self.flags, count=count, values=values
            )
            yield Send(self._after, total)
            return
        refused: list[Mask] = []
        work = partial(self._finish, self._own.values[where], where, count, refused)
        yield Now("apply", work, elements=2 * (where.stop - where.start))
        for blocks in refused:
            yield not_finite(self._peer, blocks)
        yield from self._pass_on_model(piece, where)

    def _finish(self, total: Vector, where: slice, count: int, refused: list[Mask]) -> None:
        """Add the mean of a piece to the model; append the blocks of elements that are left out to `refused`."""
        finite = np.isfinite(total)
        if not finite.all():
            total[~finite] = 0
            outside = np.zeros(self._layout.size, np.bool_)
            outside[where] = ~finite
            refused.append(np.logical_or.reduceat(outside, self._layout.offsets[:-1]) & (self._layout.sizes > 0))
        total /= np.float32(max(count, 1))
        self._model[where] += total

    def _pass_on_model(self, piece: _Piece, where: slice) -> Iterator[Effect]:
        """Send a piece of the next model to the next worker, unless that worker has made it."""
        made = (piece[0] - 1) % self._count
        if self._after.index != made:
            assert self._own is not None, "the exchange has begun"
            chunk, number = piece
            values = self._model[where]
            yield Send(
                self._after,
                NextModel(round=self._own.round, chunk=chunk, piece=number, flags=self.flags, values=values),
            )


def _pieces(layout: Layout, count: int, size: int | str) -> Iterator[tuple[_Piece, slice]]:
    """Yield the pieces of all chunks that are not empty, of at most `size` bytes each, with their elements."""
    for chunk, (start, stop) in enumerate(layout.bounds(count)):
        step = size // 64 * 16 if isinstance(size, int) else max(1, stop - start)
        for number, low in enumerate(range(start, stop, step)):
            yield (chunk, number), slice(low, min(low + step, stop))
