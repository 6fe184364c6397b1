"""The offsets between the clocks of the hosts of a launch, which start at different times."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpcps.errors import RunError
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import ROLES, ClockQuestion, ClockReading, Message, Peer
from hpcps.transport.backoff import Backoff
from hpcps.transport.process_group import ProcessGroup

ROUNDS = 32
"""Number of times that a process asks rank 0 for the time; the fastest answer counts."""

_TIMEOUT = 60.0
"""Seconds to wait for a message."""
_Kind = TypeVar("_Kind", bound=Message)


@dataclass(frozen=True)
class Offset:
    """The seconds to add to the clock of a process to get that of rank 0, and the largest error of this number."""

    seconds: float
    error: float


SHARED = Offset(0.0, 0.0)


def clock_identity() -> str:
    """Return a text that is equal for processes with the same monotonic clock: the boot and the time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return f"{os.uname().nodename} {os.getpid()}"


class Clocks:
    """The clocks of a launch's processes.

    One process of each clock asks rank 0 for the time several times. The error of an answer is at most half of the time
    from the question to the answer. (Cristian, "Probabilistic clock synchronization", 1989.)

    Attributes:
        session: time of day on rank 0 when this object was created, in nanoseconds; equal for all processes.
    """

    def __init__(
        self,
        group: ProcessGroup,
        me: Peer,
        *,
        clock: Callable[[], float] = time.perf_counter,
        identity: Callable[[], str] = clock_identity,
    ) -> None:
        """Exchange the identities of all clocks; all processes call this together.

        Args:
            group: the processes.
            me: this process.
            clock: the clock of this process, in seconds.
            identity: returns the identity of that clock.
        """
        self._group, self._me, self._clock = group, me, clock
        cards = [text.split(" ", 2) for text in group.collect(f"{me} {time.time_ns()} {identity()}")]
        self._peers = [Peer.parse(name) for name, _, _ in cards]
        self._names = [name for _, _, name in cards]
        self.session = int(cards[0][1])
        self._asking = [
            rank
            for rank, name in enumerate(self._names)
            # A scheduler of ps-lite is no role and has no trace.
            if name != self._names[0] and self._peers[rank].role in ROLES and rank == self._representative(name)
        ]

    def compare(self) -> Offset:
        """Compare the clock of this process with that of rank 0.

        The rates of clocks differ, so a launch compares them several times. All processes call this together, while no
        other message is in transit. If all of them share one clock, nothing is sent.

        Raises:
            RunError: no answer arrives in time.
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
        """Return the first rank with this clock that has a role."""
        ranks = enumerate(self._names)
        return next(rank for rank, other in ranks if other == name and self._peers[rank].role in ROLES)


def _ask(group: ProcessGroup, me: Peer, first: Peer, clock: Callable[[], float]) -> Offset:
    best = Offset(0.0, float("inf"))
    for number in range(ROUNDS):
        asked = clock()
        group.transport.send(first, Envelope(me, "", ClockQuestion(number=number)))
        _, answer = _receive(group, ClockReading, f"{me} waits for the time of {first}")
        answered = clock()
        error = (answered - asked) / 2
        if error < best.error:
            best = Offset(answer.clock - (asked + answered) / 2, error)
    return best


def _answer(group: ProcessGroup, me: Peer, questions: int, clock: Callable[[], float]) -> None:
    for _ in range(questions):
        source, asked = _receive(group, ClockQuestion, f"{me} waits for questions about the time")
        group.transport.send(source, Envelope(me, "", ClockReading(number=asked.number, clock=clock())))


def _receive(group: ProcessGroup, kind: type[_Kind], what: str) -> tuple[Peer, _Kind]:
    """Return the next message of a kind with its sender."""
    backoff, until = Backoff(), time.monotonic() + _TIMEOUT
    while True:
        arrival = group.transport.receive()
        if isinstance(arrival, Delivered) and isinstance(arrival.envelope.message, kind):
            return arrival.source, arrival.envelope.message
        if time.monotonic() > until:
            raise RunError(
                f"{what}, and no message arrived in {_TIMEOUT:g} s; run without --trace to skip this comparison"
            )
        backoff.wait()
