"""The signs of life of the processes of a launch, as one of them, or `hpcps run`, sees them.

The guard of each process renews them, as `hpcps.launch.guard` says. They are the times of files, because every host can
read the folder of the plan, and because a process that computes sends no messages.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcps.launch.guard import LostGuards, look_interval
from hpcps.launch.plan import Plan, Rank
from hpcps.protocol.messages import Peer
from hpcps.transport.process_group import LostError

_SUPERVISOR = "supervisor.sign"


class SignsOfLife:
    """The signs of life of all processes of a launch.

    A process is silent while the observer gives signs of life and this one does not: so no process counts as silent
    while a batch system has suspended all of them, or while the file system does not answer.
    """

    def __init__(
        self,
        plan: Plan,
        plan_file: Path,
        observer: Rank | None,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to observe; a process without a file has not started, or has ended.

        Args:
            plan: the plan of the launch.
            plan_file: its file.
            observer: the process that observes the others; None: `hpcps run`, which has no guard, and renews its own.
            timeout: the longest silence, in seconds.
            clock: returns seconds.
        """
        guards = LostGuards(plan_file)
        self._files = {rank: guards.file(str(rank)) for rank in plan.world if rank != observer}
        self._own, self._renews = guards.file(str(observer or _SUPERVISOR)), observer is None
        self._timeout, self._clock = timeout, clock
        # A guard looks at its process at least once between two looks at its file.
        self._interval = 2 * look_interval(plan.timeout)
        self._looked = clock()
        self._own_sign: int | None = None
        self._signs: dict[Rank, int | None] = {}
        self._silence: dict[Rank, float] = {}

    def check(self, most: float = math.inf) -> None:
        """Look at the files, if it is time for that.

        Args:
            most: the longest silence at present, in seconds, if that is shorter than the timeout.

        Raises:
            LostError: a process has been silent for longer.
        """
        now = self._clock()
        passed = min(now - self._looked, 2 * self._interval)
        if now - self._looked < self._interval:
            return
        self._looked = now
        if self._renews:
            with suppress(OSError):
                self._own.touch()
        before, self._own_sign = self._own_sign, _time_of(self._own)
        if self._own_sign == before:
            return
        for rank, file in self._files.items():
            sign = _time_of(file)
            if sign is None or sign != self._signs.get(rank):
                self._signs[rank], self._silence[rank] = sign, 0.0
                continue
            self._silence[rank] += passed
            if self._silence[rank] > min(self._timeout, most) and _time_of(file, fresh=True) == sign:
                host = socket.gethostname() if rank.host == "localhost" else rank.host
                why = f"it has given no sign of life for {self._silence[rank]:.3g} s, because it is stopped or hangs"
                raise LostError(Peer(rank.role, rank.index), host, f"{why}, or its host is gone")


def _time_of(file: Path, *, fresh: bool = False) -> int | None:
    """Return the time of a file; None if there is none.

    Args:
        file: the file.
        fresh: whether to open the file: a network file system may cache the result of `stat`.
    """
    try:
        if not fresh:
            return file.stat().st_mtime_ns
        with file.open("rb") as opened:
            return os.fstat(opened.fileno()).st_mtime_ns
    except OSError:
        return None
