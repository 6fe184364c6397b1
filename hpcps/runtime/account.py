"""What a role writes of itself: the lines of its record, and what a round took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcps.records.writer import RecordWriter
from hpcps.runtime.stopwatch import Stopwatch
from hpcps.transport.base import Traffic

_COUNTED = ("messages_sent", "messages_received", "polls")


class Account:
    """Writes the lines; those of a round, or of an update that was applied, say what happened since the last of them.

    Attributes:
        counts: `messages_sent`, `messages_received` and `polls` since then.
        stopwatch: where the time since then went.
    """

    def __init__(self, record: RecordWriter, traffic: Traffic, stopwatch: Stopwatch) -> None:
        """Begin.

        Args:
            record: where the lines go.
            traffic: the bytes of all messages so far; it is kept up by who sends and receives.
            stopwatch: what the times are measured by.
        """
        self._record = record
        self._traffic = traffic
        self._reported = (traffic.sent, traffic.received)
        self.counts: Counter[str] = Counter()
        self.stopwatch = stopwatch

    def write(self, event: str, round: int, fields: Mapping[str, object]) -> None:
        """Write a line; the fields may say another round."""
        values = {"round": round, **fields}
        if event in ("round", "applied"):
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
