"""What runs beside a role's own work, one thing at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Finished:
    """Something that ran beside the role, and is over.

    Attributes:
        task: what it was.
        round: the round in which it was begun.
        result: what it returned.
        error: what it raised, if it did.
        start: when it began, in seconds of the sideline's clock.
        stop: when it ended, likewise.
        cpu: CPU seconds that it used.
    """

    task: str
    round: int
    result: Any
    error: Exception | None
    start: float
    stop: float
    cpu: float


class Sideline(Protocol):
    """Where an `Aside` runs; `Background` for real, in virtual time a simulation's."""

    @property
    def busy(self) -> bool:
        """Whether something was begun that has not been taken yet."""

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        """Begin; nothing else may be under way."""

    def wait(self) -> None:
        """Wait until what was begun is over."""

    def take(self) -> Finished | None:
        """Return what is over, once; None if nothing is."""


class Background:
    """A thread, from the first thing that is begun to the end of this context, which breaks off what is under way.

    It is one thread for all, as to start one takes until a core runs it: on a busy machine as long as a step. It must
    not outlive the role: an interpreter that ends stops it in the middle of C++, which aborts.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu: Callable[[], float] = time.process_time
    ) -> None:
        """Begin with nothing.

        Args:
            clock: seconds.
            cpu: CPU seconds of the whole process.
        """
        self._clock = clock
        self._process_cpu = cpu
        self._thread: threading.Thread | None = None
        self._cpu_id: int | None = None
        self._given: SimpleQueue[tuple[str, int, Callable[[], Any]] | None] = SimpleQueue()
        self._cancel: Callable[[], None] | None = None
        self._over = threading.Event()
        self._finished: Finished | None = None
        self._latest = 0.0

    @property
    def busy(self) -> bool:
        """See `Sideline.busy`."""
        return self._cancel is not None

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        """See `Sideline.begin`."""
        assert not self.busy, "one thing at a time"
        if self._thread is None:
            # A daemon: if the process ends in a way that leaves no time to wait for it, it shall not stay for it.
            self._thread = threading.Thread(target=self._run, name="beside", daemon=True)
            self._thread.start()
        self._cancel = cancel
        self._given.put((task, round, work))

    def wait(self) -> None:
        """See `Sideline.wait`; a signal interrupts it."""
        self._over.wait()

    def take(self) -> Finished | None:
        """See `Sideline.take`."""
        if not self._over.is_set():
            return None
        finished, self._finished, self._cancel = self._finished, None, None
        self._over.clear()
        return finished

    def cpu_beside(self) -> float:
        """Return the CPU seconds of the process without those of the thread here; it never goes back."""
        # First the thread's: what it uses until the other clock is read counts to the rest until the next call.
        used = 0.0 if self._cpu_id is None else time.clock_gettime(self._cpu_id)
        self._latest = max(self._latest, self._process_cpu() - used)
        return self._latest

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        if self._cancel is not None:
            self._cancel()
        self._given.put(None)
        # From here on its clock may be gone at any moment.
        self._cpu_id = None
        self._thread.join()

    def _run(self) -> None:
        self._cpu_id = time.pthread_getcpuclockid(threading.get_ident())
        while (given := self._given.get()) is not None:
            task, round, work = given
            start, cpu, result, error = self._clock(), time.thread_time(), None, None
            try:
                # numpy keeps this for each thread; see `Node`, which says why.
                with np.errstate(over="ignore", invalid="ignore"):
                    result = work()
            except Exception as raised:
                error = raised
            self._finished = Finished(task, round, result, error, start, self._clock(), time.thread_time() - cpu)
            # What it held, such as a copy of the model, goes with the next line, not with the next measurement.
            del given, work, result
            self._over.set()
