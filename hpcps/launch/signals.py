"""The signals that tell us to stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ECHO = 1.0
"""Seconds within which what a machine sends once more says nothing new.

A batch system that cancels a job tells all of its processes, and the job's script, being told, passes it on to us.
"""


@contextmanager
def stops_of(on_stop: Callable[[int], None] = lambda count: None) -> Iterator[list[signal.Signals]]:
    """Collect the signals that tell us to stop, instead of dying of them.

    Ctrl-C counts each time, as it is a person's; TERM and HUP count once a second at most.

    Args:
        on_stop: called in the signal's handler, with the number of signals so far.
    """
    stops: list[signal.Signals] = []
    noted = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        now = time.monotonic()
        if stops and number != signal.SIGINT and now - noted < _ECHO:
            return
        noted = now
        stops.append(signal.Signals(number))
        on_stop(len(stops))

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What is ignored (by nohup, say) stays ignored.
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heeded}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
