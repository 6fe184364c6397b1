"""The mean of all updates by a ring of the workers: reduce-scatter, then all-gather."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcps.errors import RunError
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.protocol.messages import Flag, Kind, Malformed, Message, Peer, Received, Reduced
from hpcps.roles.checks import not_finite, wrong_size
from hpcps.roles.collective.averager import Contribution
from hpcps.roles.events import Effect, Now, Send
from hpcps.spec.schema import Run

_Piece = tuple[int, int]
"""A chunk, and the number of a piece of it."""


class RingAverager:
    """Adds the mean of n updates x_0, … x_(n-1) `[d]` to the model w `[d]`, of which m take part.

    The vector has n chunks, `layout.bounds(n)`. In float32:

        s = x_c                                   in chunk c
        s = s + x_k                               for k = c + 1, …, c + n - 1, modulo n
        w = w + s / m                             where s is finite; else w stays as it is

    Chunk c begins at worker c and goes from worker to worker, and each adds its own update. So worker c - 1 has the
    sum. It makes the chunk of the next model, which goes once around the ring. An element whose sum overflows float32
    does not enter the model; that worker records the block as rejected.

    Chunks consist of pieces of at most `transport.partition` bytes, each of which goes around the ring by itself. Every
    worker sends 2 (n - 1) / n of the vector in a round. The flags of the keeper are in all messages: no worker is done
    before the first chunk, which begins at the keeper, has come to it.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, layout: Layout, model: Vector) -> None:
        """Prepare the averaging of one worker.

        Args:
            peer: the worker.
            run: the run.
            run_id: its id.
            layout: the blocks of the model.
            model: the model `[d]`; each exchange changes it.
        """
        self.done, self.flags = True, Flag.NONE
        self._peer = peer
        self._run_id = run_id
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
        self._expected = {(Kind.PARTIAL, piece) for piece in self._pieces if piece[0] != first}
        self._expected |= {(Kind.CHUNK, piece) for piece in self._pieces if piece[0] != last}
        self._owed = set(self._expected)
        self._early: list[Message] = []
        self._own: Contribution | None = None

    def start(self) -> Iterator[Effect]:
        """See `Averager.start`."""
        yield from ()

    def begin(self, own: Contribution) -> Iterator[Effect]:
        """See `Averager.begin`."""
        self._own, self.flags, self.done = own, own.flags, False
        for piece, where in self._pieces.items():
            if piece[0] == self._peer.index:
                yield from self._pass_on_sum(piece, where, own.count)
        early, self._early = self._early, []
        for message in early:
            yield from self._use(message)
        self._end_when_complete()

    def takes(self, event: Received | Malformed | Reduced) -> bool:
        """See `Averager.takes`."""
        kinds = (Kind.PARTIAL, Kind.CHUNK)
        return isinstance(event, Received) and event.message.kind in kinds and event.source in self.needs

    def take(self, event: Received | Malformed | Reduced, round: int) -> Iterator[Effect]:
        """See `Averager.take`; the worker before may be in the next round already."""
        assert isinstance(event, Received), "it takes no others"
        message = event.message
        if reason := self._wrong(message, round):
            raise RunError(f"{self._peer} cannot use what {event.source} sent in round {round}: {reason}")
        self._owed.remove((message.kind, (message.shard, message.partition)))
        if self.done:
            self._early.append(message)
        else:
            yield from self._use(message)
            self._end_when_complete()

    def _end_when_complete(self) -> None:
        if not self._owed:
            self.done, self._owed = True, set(self._expected)

    def _wrong(self, message: Message, round: int) -> str | None:
        """Return what is wrong with a message; None if nothing is."""
        piece = message.shard, message.partition
        what = f"the {message.kind.name} of piece {piece[1]} of chunk {piece[0]} of round {message.round}"
        if message.round != round:
            return f"it is {what}"
        if (message.kind, piece) not in self._owed or (self.done and message.kind is Kind.CHUNK):
            return f"it does not expect {what}"
        where = self._pieces[piece]
        return wrong_size(message, where.stop - where.start)

    def _use(self, message: Message) -> Iterator[Effect]:
        """Add the own update to a sum, or take a piece of the next model; pass it on."""
        assert self._own is not None, "the exchange has begun"
        piece = message.shard, message.partition
        where = self._pieces[piece]
        self.flags |= message.flags
        elements = where.stop - where.start
        if message.kind is Kind.PARTIAL:
            mine = self._own.values[where]
            yield Now("apply", partial(np.add, message.values, mine, out=mine), elements=2 * elements)
            yield from self._pass_on_sum(piece, where, message.index + self._own.count)
        else:
            yield Now("apply", partial(np.copyto, self._model[where], message.values), elements=elements)
            yield from self._pass_on_model(piece, where)

    def _pass_on_sum(self, piece: _Piece, where: slice, count: int) -> Iterator[Effect]:
        """Send a sum to the next worker; the last worker of the chunk adds the mean to its model."""
        assert self._own is not None, "the exchange has begun"
        if self._after.index != piece[0]:
            yield self._message(Kind.PARTIAL, piece, self._own.values[where], count)
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
            yield self._message(Kind.CHUNK, piece, self._model[where])

    def _message(self, kind: Kind, piece: _Piece, payload: Vector, count: int = 0) -> Send:
        assert self._own is not None, "the exchange has begun"
        chunk, number = piece
        message = Message(
            kind, self._peer, self._run_id, self._own.round, chunk, self.flags,
            payload=payload, index=count, partition=number,
        )  # fmt: skip
        return Send(self._after, message)


def _pieces(layout: Layout, count: int, size: int | str) -> Iterator[tuple[_Piece, slice]]:
    """Yield the pieces of all chunks that are not empty, of at most `size` bytes each, with their elements."""
    for chunk, (start, stop) in enumerate(layout.bounds(count)):
        step = size // 64 * 16 if isinstance(size, int) else max(1, stop - start)
        for number, low in enumerate(range(start, stop, step)):
            yield (chunk, number), slice(low, min(low + step, stop))
