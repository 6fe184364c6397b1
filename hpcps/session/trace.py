"""The trace of one process of a script: the activities of the process, and its exchanges with the names of BytePS."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Received
from hpcps.records.files import write_whole
from hpcps.records.trace.tracer import Tracer
from hpcps.roles.events import Now, Send
from hpcps.session.tensors import TensorExchange

_FIRST, _LAST = "BYTEPS_TRACE_START_STEP", "BYTEPS_TRACE_END_STEP"


class SessionTrace:
    """Traces the messages, the combining and the waits of a process with the tracer of experiments.

    The 10th to the 20th exchange of every tensor also go to a file with the format and the names of BytePS:
    `Comm.<tensor>`, `Comm.<tensor>.PUSH` and `.PULL`. The variables of BytePS choose other exchanges.

    Attributes:
        step: the number of steps of the script that are over.
    """

    def __init__(self, tracer: Tracer, file: Path, activity: str) -> None:
        """Begin a trace.

        Args:
            tracer: writes the activities.
            file: gets the exchanges, if there are any.
            activity: what the process does between messages: `train`, or `wait` if it is a server.
        """
        self.step = 0
        self._tracer, self._file, self._activity = tracer, file, activity
        self._exchanges = range(int(os.environ.get(_FIRST, "10")), int(os.environ.get(_LAST, "20")) + 1)
        self._numbers: Counter[str] = Counter()
        self._pushed: dict[tuple[TensorExchange, str], float] = {}
        self._events: list[dict[str, Any]] = []
        tracer.rest(activity)

    def begin(self, effect: Send | Now) -> float:
        """Return the time at which an effect begins."""
        return self._tracer.begin(effect)

    def carried_out(self, effect: Send | Now, start: float) -> None:
        """Record an effect that took from `start` until now."""
        self._tracer.carried_out(effect, self.step, start)
        self._tracer.rest(self._activity)

    def took(self, message: Received) -> None:
        """Record that a message has come."""
        self._tracer.took(message, self.step, self._tracer.clock())
        self._tracer.rest(self._activity)

    def rest(self, activity: str) -> None:
        """Record that the script now computes (`train`) or waits (`wait`)."""
        self._tracer.took(None, self.step, self._tracer.clock())
        self._activity = activity
        self._tracer.rest(activity)

    def pushed(self, aggregator: Peer, slot: int, exchanges: Iterable[TensorExchange]) -> None:
        """Record that parts of tensors, from a slot on, have been sent to their aggregator."""
        now = time.monotonic()
        for exchange, part in ((each, f"{aggregator} {number}") for number, each in enumerate(exchanges, slot)):
            if self._numbers[exchange.tensor.declaration.name] + 1 in self._exchanges:
                self._pushed[exchange, part] = now
                self._add(exchange, ".PUSH", part, exchange.began, now)

    def pulled(self, aggregator: Peer, slot: int, exchanges: Iterable[TensorExchange]) -> None:
        """Record that the results of parts of tensors have come, before the exchanges take them."""
        now = time.monotonic()
        for exchange, part in ((each, f"{aggregator} {number}") for number, each in enumerate(exchanges, slot)):
            sent = self._pushed.pop((exchange, part), None)
            if sent is not None:
                self._add(exchange, ".PULL", part, sent, now)
                if exchange.left == 1:
                    self._add(exchange, "", "total", exchange.began, now)
            self._numbers[exchange.tensor.declaration.name] += exchange.left == 1

    def close(self) -> None:
        """Write the files to their ends."""
        self._tracer.close()
        if not self._events:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._file, json.dumps({"traceEvents": self._events, "displayTimeUnit": "ms"}))

    def _add(self, exchange: TensorExchange, stage: str, tid: str, start: float, stop: float) -> None:
        name = f"Comm.{exchange.tensor.declaration.name}"
        times = {"ts": round(start * 1e6), "dur": round((stop - start) * 1e6)}
        self._events.append({"ph": "X", "cat": "Comm", "name": name + stage, "pid": name, "tid": tid, **times})
