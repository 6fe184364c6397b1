"""The signs of life of the processes of a launch, as one of them, or `hpcps run`, sees them.

The guard of each process renews them, as `hpcps.launch.guard` says. They are the times of files, because every host can
read the folder of the plan, and because a process that computes sends no messages.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hpcps.launch.arrivals import Arrivals
from hpcps.launch.guard import LostGuards, look_interval
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.unreachable import unreachable
from hpcps.protocol.messages import Peer
from hpcps.transport.process_group import LostError

_SUPERVISOR = "supervisor.sign"
_HOSTS_AFTER = 2.0
"""Times the longest silence in the start, after which hosts must answer if no process of a launch has begun."""
_TIMES_LONGER = 3.0
"""Times the time in which other processes of a launch have begun, after which a further one must have begun."""


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
        reach: Callable[[Iterable[str]], list[str]] = unreachable,
    ) -> None:
        """Begin to observe; a process without a file has not started, or has ended.

        Args:
            plan: the plan of the launch.
            plan_file: its file.
            observer: the process that observes the others; None: `hpcps run`, which has no guard, and renews its own.
            timeout: the longest silence, in seconds.
            clock: returns seconds.
            reach: returns hosts that do not answer.
        """
        guards = LostGuards(plan_file)
        self._files = {rank: guards.file(str(rank)) for rank in plan.world if rank != observer}
        self._own, self._renews = guards.file(str(observer or _SUPERVISOR)), observer is None
        self._replaceable = plan.replaceable
        self._timeout, self._clock, self._reach = timeout, clock, reach
        # A guard looks at its process at least once between two looks at its file.
        self._interval = 2 * look_interval(plan.timeout)
        self._looked = clock()
        self._own_sign: int | None = None
        self._signs: dict[Rank, int | None] = {}
        self._silence: dict[Rank, float] = {}
        self._folders = guards.path, Arrivals(plan_file).path
        self._begun: list[Rank] = []
        self._started = self._waited = self._asked = 0.0

    def check(self, most: float = math.inf) -> None:
        """Look at the files, if it is time for that.

        Args:
            most: the longest silence at present, in seconds, if that is shorter than the timeout: while the processes
                start. Then all must also begin, within this time, or a multiple of that which the others have taken.

        Raises:
            LostError: a process has been silent for longer, or has not begun.
        """
        now = self._clock()
        passed = min(now - self._looked, 2 * self._interval)
        if now - self._looked < self._interval:
            return
        self._looked = now
        if self._renews:
            with suppress(OSError):
                self._own.parent.mkdir(exist_ok=True)
                self._own.touch()
        before, self._own_sign = self._own_sign, _time_of(self._own)
        if self._own_sign == before:
            return
        for rank, file in self._files.items():
            sign = _time_of(file)
            if sign is None or sign != self._signs.get(rank):
                self._signs[rank], self._silence[rank] = sign, 0.0
                continue
            if rank.rank in self._replaceable and most == math.inf:
                continue  # its guard ends it, or the transport finds that its host is gone
            self._silence[rank] += passed
            if self._silence[rank] > min(self._timeout, most) and _time_of(file, fresh=True) == sign:
                host = socket.gethostname() if rank.host == "localhost" else rank.host
                why = f"it has given no sign of life for {self._silence[rank]:.3g} s, because it is stopped or hangs"
                raise LostError(Peer(rank.role, rank.index), host, f"{why}, or its host is gone")
        if most < math.inf:
            self._check_begun(passed, most)

    def _check_begun(self, passed: float, least: float) -> None:
        """Check that no process is long in coming: its host may be gone before the process has a guard.

        How long processes take to begin depends on the host and on its file system, so the others are the measure.

        Raises:
            LostError: one has not begun.
        """
        # A process that has ended has left its file in one of the folders. Network file systems may cache that a file
        # is not there, and a list of the folder refreshes this.
        names = {name.partition(".")[0] for folder in self._folders for name in _names(folder) if name != _SUPERVISOR}
        new = [rank for rank in self._files if rank not in self._begun and str(rank) in names]
        if new:
            self._begun += new
            self._started, self._waited = self._started + self._waited, 0.0
        self._waited += passed
        absent = [rank for rank in self._files if rank not in self._begun]
        if not names and self._waited > self._asked + _HOSTS_AFTER * least:
            self._asked = self._waited
            gone = self._reach(rank.host for rank in absent if rank.host != "localhost")
            for rank in absent:
                if rank.host in gone:
                    why = f"no process has begun for {self._waited:.3g} s, and the host does not answer"
                    raise LostError(Peer(rank.role, rank.index), rank.host, why)
        if absent and self._begun and self._waited > max(least, _TIMES_LONGER * self._started):
            first = absent[0]
            host = socket.gethostname() if first.host == "localhost" else first.host
            there, here = (sum(rank.host == first.host for rank in ranks) for ranks in (self._files, absent))
            why = (
                f"it has not begun {self._waited:.3g} s after {self._begun[-1]}, the last one that has: the host is "
                f"gone or cannot be reached, or starts programs slowly ({here} of its {there} processes have not begun)"
            )
            raise LostError(Peer(first.role, first.index), host, why)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # nothing has begun yet
        return []


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
