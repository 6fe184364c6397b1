"""Write the record lines of a role, with the traffic and the times of each round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcps.execution.stopwatch import Stopwatch
from hpcps.protocol.messages import Malformed, Message, Peer, Received
from hpcps.protocol.roster import ADVERSARY
from hpcps.records.writer import RecordWriter
from hpcps.transport.base import Traffic

_ACCOUNTS = ("round", "applied", "published", "end")
"""The events whose lines hold the counts and times since the last such line."""

_COUNTED = ("messages_sent", "messages_received", "polls")


class Account:
    """Writes the lines; the lines of some events, such as `round`, hold the counts and times since the last such line.

    Attributes:
        counts: `messages_sent`, `messages_received` and `polls` since that line, including messages of the adversary.
        stopwatch: the times since that line.
    """

    def __init__(self, record: RecordWriter, traffic: Traffic, stopwatch: Stopwatch) -> None:
        """Start counting.

        Args:
            record: the record to write to.
            traffic: the bytes of all messages so far; the transport updates it.
            stopwatch: measures the times.
        """
        self._record = record
        self._traffic = traffic
        self._aside = Traffic()
        self._reported = (traffic.sent, traffic.received)
        self.counts: Counter[str] = Counter()
        self.stopwatch = stopwatch

    def sent(self, me: Peer, to: Peer, message: Message) -> None:
        """Count a message; its bytes are counted apart if one of both is the adversary."""
        self.counts["messages_sent"] += 1
        if ADVERSARY in (me, to):
            self._aside.sent += self._size(message)

    def received(self, me: Peer, event: Received | Malformed) -> None:
        """Count a message that was received; its bytes as in `sent`."""
        self.counts["messages_received"] += 1
        if isinstance(event, Received) and ADVERSARY in (me, event.source):
            self._aside.received += self._size(event.message)

    def write(self, event: str, round: int, fields: Mapping[str, object]) -> None:
        """Write a line; `fields` may override the round."""
        values = {"round": round, **fields}
        if event in _ACCOUNTS:
            values |= self._since_the_last()
        self._record.write(event, **values)

    def _since_the_last(self) -> dict[str, object]:
        sent, received = self._reported
        self._reported = (self._traffic.sent, self._traffic.received)
        aside, self._aside = self._aside, Traffic()
        taken: dict[str, object] = {"bytes_sent": self._traffic.sent - sent - aside.sent}
        taken["bytes_received"] = self._traffic.received - received - aside.received
        if aside.sent or aside.received:
            taken |= {"adversary_bytes_sent": aside.sent, "adversary_bytes_received": aside.received}
        taken |= {name: self.counts[name] for name in _COUNTED}
        self.counts.clear()
        self.stopwatch.charge("exchange")
        return taken | self.stopwatch.take()

    def _size(self, message: Message) -> int:
        """Return what the transport counts for a message."""
        return self._traffic.size(message.header(), message.payload_bytes)
