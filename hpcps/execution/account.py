"""Write the record lines of a role, with the traffic and the times of each round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcps.execution.stopwatch import Stopwatch
from hpcps.records.writer import RecordWriter
from hpcps.transport.base import Traffic

_ACCOUNTS = ("round", "applied", "published", "end")
"""The events whose lines hold the counts and times since the last such line."""

_COUNTED = ("messages_sent", "messages_received", "polls")


class Account:
    """Writes the lines; the lines of some events, such as `round`, hold the counts and times since the last such line.

    Attributes:
        counts: `messages_sent`, `messages_received` and `polls` since that line.
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
        self._reported = (traffic.sent, traffic.received)
        self.counts: Counter[str] = Counter()
        self.stopwatch = stopwatch

    def write(self, event: str, round: int, fields: Mapping[str, object]) -> None:
        """Write a line; `fields` may override the round."""
        values = {"round": round, **fields}
        if event in _ACCOUNTS:
            values |= self._since_the_last()
        self._record.write(event, **values)

    def _since_the_last(self) -> dict[str, object]:
        sent, received = self._reported
        self._reported = (self._traffic.sent, self._traffic.received)
        taken: dict[str, object] = {"bytes_sent": self._traffic.sent - sent}
        taken["bytes_received"] = self._traffic.received - received
        taken |= {name: self.counts[name] for name in _COUNTED}
        self.counts.clear()
        self.stopwatch.charge("exchange")
        return taken | self.stopwatch.take()
