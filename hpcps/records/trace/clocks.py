"""The differences between the clocks of a launch's hosts, which start at different times."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcps.errors import RunError
from hpcps.protocol.messages import ROLES, Kind, Message, Peer, Received
from hpcps.transport.backoff import Backoff
from hpcps.transport.process_group import ProcessGroup

ROUNDS = 32
"""Questions to the first process; the answer that came soonest counts."""

_PATIENCE = 60.0


@dataclass(frozen=True)
class Offset:
    """What to add to a process's clock to get that of the first process, in seconds, and how far off that may be."""

    seconds: float
    error: float


SHARED = Offset(0.0, 0.0)


def clock_identity() -> str:
    """Return what processes with one monotonic clock have in common: a started kernel, and a time namespace of it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return f"{os.uname().nodename} {os.getpid()}"


class Clocks:
    """The clocks of a launch's processes.

    One process of each clock asks rank 0 for the time again and again. Half of the time until the answer is the most
    by which it can be wrong. (Cristian, "Probabilistic clock synchronization", 1989.)

    Attributes:
        session: rank 0's time of day as the processes met here, in nanoseconds: the same number for all of them.
    """

    def __init__(
        self,
        group: ProcessGroup,
        me: Peer,
        *,
        clock: Callable[[], float] = time.perf_counter,
        identity: Callable[[], str] = clock_identity,
    ) -> None:
        """Let all processes know who has which clock; they do so together.

        Args:
            group: the processes.
            me: who this one is.
            clock: this process's.
            identity: says which clock that is.
        """
        self._group, self._me, self._clock = group, me, clock
        cards = [text.split(" ", 2) for text in group.collect(f"{me} {time.time_ns()} {identity()}")]
        self._peers = [_peer(name) for name, _, _ in cards]
        self._names = [name for _, _, name in cards]
        self.session = int(cards[0][1])
        self._asking = [
            rank
            for rank, name in enumerate(self._names)
            # A scheduler, say, is no role: nothing of it is traced.
            if name != self._names[0] and self._peers[rank].role in ROLES and rank == self._representative(name)
        ]

    def compare(self) -> Offset:
        """Compare this process's clock with that of rank 0, once more: no two clocks run equally fast.

        All processes do so together, while no other message travels; those that share one clock need not.

        Raises:
            RunError: no answer comes.
        """
        group = self._group
        if not self._asking:
            return SHARED
        answer = ""
        if group.rank in self._asking:
            found = _ask(group, self._me, self._peers[0], self._clock)
            answer = json.dumps([found.seconds, found.error])
        elif group.rank == 0:
            _answer(group, self._me, ROUNDS * len(self._asking), self._clock)
        answers = group.collect(answer)
        mine = self._names[group.rank]
        if mine == self._names[0] or self._me.role not in ROLES:
            return SHARED
        return Offset(*json.loads(answers[self._representative(mine)]))

    def _representative(self, name: str) -> int:
        """Return the first rank with a clock that can ask."""
        ranks = enumerate(self._names)
        return next(rank for rank, other in ranks if other == name and self._peers[rank].role in ROLES)


def _peer(text: str) -> Peer:
    role, _, index = text.rpartition("-")
    return Peer(role, int(index))


def _ask(group: ProcessGroup, me: Peer, first: Peer, clock: Callable[[], float]) -> Offset:
    best = Offset(0.0, float("inf"))
    for number in range(ROUNDS):
        asked = clock()
        group.transport.send(first, Message(Kind.CLOCK, me, "", number))
        answer = _receive(group, f"{me} compares its clock with that of {first}")
        answered = clock()
        error = (answered - asked) / 2
        if error < best.error:
            best = Offset(float(answer.message.note["clock"]) - (asked + answered) / 2, error)
    return best


def _answer(group: ProcessGroup, me: Peer, questions: int, clock: Callable[[], float]) -> None:
    for _ in range(questions):
        asked = _receive(group, f"{me} is to be asked for the time")
        note = {"clock": clock()}
        group.transport.send(asked.source, Message(Kind.CLOCK, me, "", asked.message.round, note=note))


def _receive(group: ProcessGroup, what: str) -> Received:
    patience, until = Backoff(), time.monotonic() + _PATIENCE
    while not (isinstance(arrival := group.transport.receive(), Received) and arrival.message.kind is Kind.CLOCK):
        if time.monotonic() > until:
            raise RunError(f"{what}, and nothing came for {_PATIENCE:g} s; leave --trace out to do without")
        patience.wait()
    return arrival
