"""The signals that ask us to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ECHO = 1.0
"""Seconds within which a repeated signal counts as the same request.

A batch system that cancels a job signals all of its processes, and the job script also forwards its signal to us.
"""


@contextmanager
def stops_of(on_stop: Callable[[int], None] = lambda count: None) -> Iterator[list[signal.Signals]]:
    """Collect stop signals instead of ending the process.

    Every Ctrl-C counts, because a person sends it; TERM and HUP count at most once a second. Python handles signals in
    the main thread only; in another thread none is collected.

    Args:
        on_stop: called in the signal handler, with the number of signals so far.
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
    # A signal that is ignored (under nohup, for example) stays ignored.
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
