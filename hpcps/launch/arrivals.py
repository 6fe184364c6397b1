"""The files by which the processes of a script find out that one of them ends before it joins the others.

A process that calls MPI's initialization waits there for all others, without a time limit and without a chance to say
so. Each process therefore waits for the files of all others before it connects to them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.inputs import regular
from hpcps.launch.guard import ENDED
from hpcps.records.inventory import enumerated

_LOOK_EVERY = 0.02
TELL_AFTER = 30.0
"""Seconds after which a process that waits without a limit says for whom."""


class EndedError(LaunchError):
    """A process has ended before it has arrived.

    Attributes:
        process: the process.
        end: how it ended.
        time: when, in seconds since 1970.
    """

    def __init__(self, waiting: str, process: str, file: Path) -> None:
        how, self.time = regular(file).read_text(), file.stat().st_mtime
        self.process, self.end = process, f"its script {how} without joining the others in init()"
        super().__init__(f"{waiting} waited for {process}: {self.end}")


class Arrivals:
    """The files of a launch in the folder of the plan: one of each process that has arrived, or ended before that.

    A process removes its file when all have left the session, so its guard sees whether it has ended before.
    """

    def __init__(self, plan_file: Path) -> None:
        """Set the folder of the files; it need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.joining")

    def file(self, process: str) -> Path:
        """Return the file of a process, such as `worker-3`; its guard writes another beside it."""
        return self.path / process

    def arrive(
        self,
        process: str,
        everyone: Iterable[str],
        timeout: float,
        tell: Callable[[str], None] | None = None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until all processes have arrived.

        Args:
            process: this process.
            everyone: all processes.
            timeout: seconds.
            tell: gets the names of the others, once, if that takes long.
            interrupt: called again and again; what it raises ends this.

        Raises:
            EndedError: one has ended instead.
            LaunchError: some have not arrived in time, or the file cannot be written.
        """
        self.note(process)
        began, names = time.monotonic(), list(everyone)
        # Listing the folder also refreshes what a network file system caches.
        while missing := [name for name in names if name not in (found := set(os.listdir(self.path)))]:
            if ended := next((name for name in missing if name + ENDED in found), None):
                self.file(process).unlink(missing_ok=True)
                raise EndedError(process, ended, self.path / (ended + ENDED))
            waited = time.monotonic() - began
            if tell is not None and waited > TELL_AFTER:
                tell(enumerated(missing))
                tell = None
            if waited > timeout:
                self.file(process).unlink(missing_ok=True)  # so that its guard tells those that arrive later
                raise LaunchError(
                    f"{process} waited {timeout:g} s for {enumerated(missing)} to call init(): each process must call "
                    "it within the timeout of init()"
                )
            interrupt()
            time.sleep(_LOOK_EVERY)

    def note(self, process: str) -> None:
        """Write the file of this process.

        Raises:
            LaunchError: it cannot be written.
        """
        try:
            self.path.mkdir(exist_ok=True)
            self.file(process).touch()
        except OSError as error:
            raise LaunchError(f"{self.file(process)} cannot be written: {error.strerror}") from error

    def leave(self, process: str) -> None:
        """Remove the file of this process, which has left the others."""
        self.file(process).unlink(missing_ok=True)
