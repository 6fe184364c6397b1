"""Write the record lines of a role, with the traffic and the times of each round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hpcps.execution.stopwatch import Stopwatch
from hpcps.protocol.envelope import Envelope
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import ADVERSARY, EVALUATOR
from hpcps.records.writer import RecordLines
from hpcps.roles.events import Event, Idle, Resumed, StopRequested
from hpcps.transport.base import Traffic

IDLE, RESULT, STOP, STOP_AT_EPOCH, TIMER = "idle", "result", "stop", "stop at epoch", "timer"
"""Events, other than messages, whose order depends on time: no message waits, the result of a background task, a
request to stop, one to stop where an epoch ends, the end of an imposed time."""

LOST, REPLACED, SKIPPED = "lost ", "replaced ", "skipped "
"""Precede the name of another process: it is lost; it has the replacement of the number after the name; so many of its
messages as the number after the name says went to predecessors of this one, which is a replacement."""

SAME = "="
"""Precedes the sender of a message that came at the same time as the one before it, as in one process."""

_ACCOUNTS = ("round", "applied", "published", "evaluated", "end")
"""The events whose lines hold the counts and times since the last such line."""

_APART = (ADVERSARY, EVALUATOR)
"""The roles whose messages are not part of the training."""

_COUNTED = ("messages_sent", "messages_received", "polls")


class Account:
    """Writes the lines; the lines of some events, such as `round`, hold the counts and times since the last such line.

    Attributes:
        counts: `messages_sent`, `messages_received` and `polls` since that line, including messages of the adversary
            and the evaluator.
        order: the events from outside since the last line of any kind, in order: the sender of each message, or a name
            of the other events; None if the records do not state them.
        stopwatch: the times since that line.
        noted: is told the name of each event from outside.
    """

    def __init__(
        self, record: RecordLines, traffic: Traffic, stopwatch: Stopwatch, order: list[str] | None = None
    ) -> None:
        """Start counting.

        Args:
            record: the record to write to.
            traffic: the bytes of all messages so far; the transport updates it.
            stopwatch: measures the times.
            order: the initial `order`.
        """
        self.order = order
        self._arrived = -1.0
        self._record = record
        self._traffic = traffic
        self._aside = {peer: Traffic() for peer in _APART}
        self._reported = (traffic.sent, traffic.received)
        self.counts: Counter[str] = Counter()
        self.stopwatch = stopwatch
        self.noted: Callable[[str], None] | None = None

    def sent(self, to: Peer, envelope: Envelope) -> None:
        """Count a message. The bytes to and from the adversary and the evaluator are counted separately."""
        self.counts["messages_sent"] += 1
        for peer in _APART:
            if peer in (envelope.sender, to):
                self._aside[peer].sent += self._size(envelope)

    def took(self, me: Peer, event: Event) -> None:
        """Append an event that the role gets to the order; count a message, and its bytes as in `sent`.

        The order of the results of computations follows from it, except for those that wait for a timer.
        """
        match event:
            case Received() | Malformed():
                self.counts["messages_received"] += 1
                for peer in _APART:
                    if isinstance(event, Received) and peer in (me, event.source):
                        self._aside[peer].received += self._size(Envelope(event.source, "", event.message))
                same = event.arrived == self._arrived
                self._arrived = event.arrived
                self.note(f"{SAME if same else ''}{event.source}")
            case Lost(peer):
                self.note(f"{LOST}{peer}")
            case Replaced(peer, incarnation):
                self.note(f"{REPLACED}{peer} {incarnation}")
            case Idle():
                self.note(IDLE)
            case Resumed():
                self.note(TIMER)
            case StopRequested(at_epoch):
                self.note(STOP_AT_EPOCH if at_epoch else STOP)

    def note(self, name: str) -> None:
        """Append an event to the order."""
        if self.order is not None:
            self.order.append(name)
        if self.noted is not None:
            self.noted(name)

    def kept(self) -> dict[str, Any]:
        """Return what the next lines hold of what was so far, for another process that goes on."""
        traffic = self._traffic.sent, self._traffic.received
        aside = {peer: (each.sent, each.received) for peer, each in self._aside.items()}
        found = {"order": self.order, "arrived": self._arrived, "counts": self.counts, "reported": self._reported}
        return {**found, "traffic": traffic, "aside": aside}

    def resume(self, kept: Mapping[str, Any]) -> None:
        """Go on where another process was."""
        self.order, self._arrived, self.counts = kept["order"], kept["arrived"], kept["counts"]
        self._reported = kept["reported"]
        self._traffic.sent, self._traffic.received = kept["traffic"]
        self._aside = {peer: Traffic(*both) for peer, both in kept["aside"].items()}

    def write(self, event: str, round: int, fields: Mapping[str, object]) -> None:
        """Write a line; `fields` may override the round."""
        values = {"round": round, **fields}
        if event in _ACCOUNTS:
            values |= self._since_the_last()
        if self.order:
            values["order"], self.order = self.order, []
        self._record.write(event, **values)

    def _since_the_last(self) -> dict[str, object]:
        sent, received = self._reported
        self._reported = (self._traffic.sent, self._traffic.received)
        aside, self._aside = self._aside, {peer: Traffic() for peer in _APART}
        training_sent = self._traffic.sent - sent - sum(each.sent for each in aside.values())
        training_received = self._traffic.received - received - sum(each.received for each in aside.values())
        taken: dict[str, object] = {"bytes_sent": training_sent, "bytes_received": training_received}
        for peer, each in aside.items():
            if each.sent or each.received:
                taken |= {f"{peer.role}_bytes_sent": each.sent, f"{peer.role}_bytes_received": each.received}
        taken |= {name: self.counts[name] for name in _COUNTED}
        self.counts.clear()
        self.stopwatch.charge("exchange")
        return taken | self.stopwatch.take()

    def _size(self, envelope: Envelope) -> int:
        """Return what the transport counts for a message; the id of its run makes no difference."""
        return self._traffic.size(envelope.header, envelope.payload_bytes)
