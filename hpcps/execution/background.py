"""The background executor: run one task at a time in the background of a role."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Finished:
    """A background task that has finished.

    Attributes:
        task: its name.
        round: the round in which it started.
        result: its return value.
        error: the exception that it raised, or None.
        start: when it started, in seconds of the executor's clock.
        stop: when it ended, in seconds of the same clock.
        cpu: CPU seconds that it used.
    """

    task: str
    round: int
    result: Any
    error: Exception | None
    start: float
    stop: float
    cpu: float


class BackgroundExecutor(Protocol):
    """Executes an `InBackground` effect: `Background` in real time, `SimulatedBackground` in virtual time."""

    @property
    def busy(self) -> bool:
        """Whether a task has started and `take` has not returned it yet."""

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        """Start a task; the executor must not be busy."""

    def wait(self) -> None:
        """Wait until the task has finished."""

    def take(self) -> Finished | None:
        """Return the finished task, once; None if there is none."""


class Background(BackgroundExecutor):
    """A thread that runs from the first task to the end of this context; the end cancels a running task.

    One thread runs all tasks, because a new thread waits for a free core: on a busy machine as long as a training step.
    The thread must not outlive the role: when the interpreter ends, it would stop the thread inside C++ code and abort.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
        elsewhere: Callable[[], float] = float,
    ) -> None:
        """Create the executor; the first task starts its thread.

        Args:
            clock: returns seconds.
            cpu: returns the CPU seconds of the whole process.
            elsewhere: returns the CPU seconds that tasks have used in other processes.
        """
        self._clock = clock
        self._process_cpu = cpu
        self._elsewhere = elsewhere
        self._thread: threading.Thread | None = None
        self._cpu_id: int | None = None
        self._given: SimpleQueue[tuple[str, int, Callable[[], Any]] | None] = SimpleQueue()
        self._cancel: Callable[[], None] | None = None
        self._over = threading.Event()
        self._finished: Finished | None = None
        self._latest = 0.0

    @property
    def busy(self) -> bool:
        return self._cancel is not None

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        assert not self.busy, "one task at a time"
        if self._thread is None:
            # A daemon thread: it does not delay the end of a process that ends without closing this context.
            self._thread = threading.Thread(target=self._run, name="background", daemon=True)
            self._thread.start()
        self._cancel = cancel
        self._given.put((task, round, work))

    def wait(self) -> None:
        # A signal interrupts it.
        self._over.wait()

    def take(self) -> Finished | None:
        if not self._over.is_set():
            return None
        finished, self._finished, self._cancel = self._finished, None, None
        self._over.clear()
        return finished

    def foreground_cpu(self) -> float:
        """Return the CPU seconds of the process without those of the background thread; the value never decreases."""
        # Read the thread's clock first: what the thread uses between the reads counts as the rest until the next call.
        used = 0.0 if self._cpu_id is None else time.clock_gettime(self._cpu_id)
        self._latest = max(self._latest, self._process_cpu() - used)
        return self._latest

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        if self._cancel is not None:
            self._cancel()
        self._given.put(None)
        # From here on, the clock of the thread may disappear at any moment.
        self._cpu_id = None
        self._thread.join()

    def _run(self) -> None:
        self._cpu_id = time.pthread_getcpuclockid(threading.get_ident())
        while (given := self._given.get()) is not None:
            task, round, work = given
            start, cpu, result, error = self._clock(), time.thread_time() + self._elsewhere(), None, None
            try:
                # numpy keeps this setting per thread; `RoleDriver._compute` explains it.
                with np.errstate(over="ignore", invalid="ignore"):
                    result = work()
            except Exception as raised:
                error = raised
            cpu = time.thread_time() + self._elsewhere() - cpu
            self._finished = Finished(task, round, result, error, start, self._clock(), cpu)
            # Release what the task held, such as a copy of the model, now and not when the next task starts.
            del given, work, result
            self._over.set()
