"""What a process has to send, the most urgent first, and the credit that bounds what is on its way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from operator import index
from typing import TypeGuard

from hpcps.errors import SpecError
from hpcps.inputs import whole_number
from hpcps.protocol.messages import Message, TensorResult, TensorUpdate
from hpcps.roles.events import Send
from hpcps.session.buckets import PARTITION
from hpcps.session.tensors import SMALL

CREDIT = 2 * PARTITION
"""Bytes that a process hands to its transport and that are not sent: with more, an urgent tensor waits longer behind
others; with less, a network waits for the process between two partitions."""
_VARIABLE = "BYTEPS_SCHEDULING_CREDIT"
_MOST = 1 << 20
"""The most partitions that the variable may give."""


class Outbox:
    """Large messages, which wait while the transport has as many bytes to send as the credit.

    The order is that of their priorities, and that in which they were put there among equal ones. The parts of a tensor
    are put there together, and one for a neighbour is copied when it is its turn. Small messages do not wait: they may
    overtake the large ones, and whoever sends one that must not takes the others first.

    Attributes:
        credit: the bytes that the transport may have to send before it gets a further message; 0: any number.
    """

    def __init__(self, credit: int = CREDIT) -> None:
        """Begin without messages."""
        self.credit = credit
        self._waiting: list[tuple[int, int, Iterator[Send]]] = []
        self._numbers = count()

    def put(self, priority: int, effects: Iterator[Send]) -> None:
        """Let messages wait, which the iterator makes one after another."""
        heappush(self._waiting, (-priority, next(self._numbers), effects))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def next(self) -> Send | None:
        """Remove the most urgent message, and return it; None if there is none."""
        while self._waiting:
            if (effect := next(self._waiting[0][2], None)) is not None:
                return effect
            heappop(self._waiting)
        return None

    def clear(self) -> None:
        """Forget all messages."""
        self._waiting = []

    def has_room(self, unsent: int) -> bool:
        """Return whether a transport that has so many bytes to send gets a further message."""
        return not self.credit or unsent < self.credit


def waits(message: Message) -> TypeGuard[TensorUpdate | TensorResult]:
    """Return whether a message is a large one."""
    return isinstance(message, TensorUpdate | TensorResult) and message.payload_bytes > SMALL


def checked_credit(given: object = None) -> int:
    """Return a credit in bytes; without one, that of BytePS's variable, which counts partitions, or the default.

    Raises:
        SpecError: it is not 0, and smaller than a partition.
    """
    if given is not None:
        found = _integer(given)
        if found is None or (found and found < PARTITION):
            raise SpecError(
                f"credit is {given!r}: give the bytes that a process has on their way, at least {PARTITION}, which are "
                "a partition, or 0 for no bound"
            )
        return found
    text = os.environ.get(_VARIABLE)
    if text is None:
        return CREDIT
    partitions = whole_number(text, 0, _MOST)
    if partitions is None:
        raise SpecError(f"{_VARIABLE} is {text!r}: give a number of partitions, or 0 for no bound")
    return partitions * PARTITION


def checked_priority(given: object) -> int:
    """Return a priority.

    Raises:
        SpecError: it is no whole number.
    """
    found = _integer(given)
    if found is None or not -(1 << 63) <= found < 1 << 63:
        raise SpecError(f"priority is {given!r}: give a whole number; a larger one is more urgent")
    return found


def _integer(given: object) -> int | None:
    """Return a whole number as such; None if it is none."""
    if isinstance(given, bool):
        return None
    try:
        return index(given)  # type: ignore[arg-type]  # it says what is none
    except TypeError:
        return None
