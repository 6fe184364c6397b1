"""Gives the records of runs under way to experiment trackers, in a process of its own.

The package of a tracker starts threads and processes, and may wait for a network. So nothing of it is in a process that
trains: another process reads the records, as `hpcps export` does, and its failure does not end a run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.errors import text_of
from hpcps.inputs import printable
from hpcps.launch.ancestry import without_launch
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run

if TYPE_CHECKING:
    from hpcps.records.tracking import Scalar, Tracker

_INTERVAL = 2.0
"""Seconds between two looks at the records, at least."""
_SHARE = 0.1
"""The largest share of the time that reading records takes; a look at long records is followed by a long pause."""
_END = 30.0
"""Seconds that the end of the last run waits for the trackers, and after which they are killed."""


class TrackingProcess:
    """Starts and ends the process that follows runs; the end of this context waits for it, for some seconds."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def of(self, run: Run, directory: RunDirectory) -> Iterator[None]:
        """Have the trackers of a run, if it has any, follow its records during this context."""
        if not run.tracking.to:
            yield
            return
        self._request({"run": str(directory.path.absolute()), "to": list(run.tracking.to)})
        try:
            yield
        finally:
            self._request({})

    def _request(self, request: dict[str, object]) -> None:
        if self._process is None:
            # It does not inherit the connection to the launcher. In a session of its own, Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=without_launch(os.environ),
                start_new_session=True,
            )
            # A tracker that hangs lets the pipe become full: requests stay in this process, and the run goes on.
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, and has said why; or it does not read
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def __enter__(self) -> TrackingProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if kind is not None:  # this process has to end at once; the other one ends within the same time
            return
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            print(
                f"hpcps: warning: the experiment trackers did not end within {_END:g} s and were killed: "
                "`hpcps export` writes what they lack",
                file=sys.stderr,
                flush=True,
            )


class FollowedRun:
    """A run under way, and the trackers that get what its processes record."""

    def __init__(self, directory: RunDirectory, names: Sequence[str], trackers: Trackers) -> None:
        """Begin to follow.

        Args:
            directory: the folder of the run.
            names: the names of its trackers.
            trackers: the trackers.
        """
        self._directory, self._names, self._trackers = directory, names, trackers
        self._begun = False
        self._seen: dict[tuple[str, int], float] = {}
        self._logged: set[tuple[str, int]] = set()
        self._settings: dict[str, object] = {}

    def look(self, *, last: bool = False) -> None:
        """Give the trackers what is new in the records.

        A number over all processes grows until each of them has recorded its part. So a number counts once two looks
        have found the same, or if this is the last look.
        """
        from hpcps.records.collect import collect_run, settings_of_run
        from hpcps.records.tracking import TrackedRun, scalars_of, starts_of

        self._settings = self._settings or settings_of_run(self._directory)
        rows = collect_run(self._directory, self._settings) if self._settings else None
        if rows is None or rows.empty:
            return
        if not self._begun:
            start = starts_of(self._directory.path.parent.parent).get(self._directory.path.name, 0.0)
            run = TrackedRun.of(rows, start)
            self._trackers.call(self._names, lambda tracker: tracker.begin(run))
            self._begun = True
        found: list[Scalar] = []
        for scalar in scalars_of(rows):
            name = scalar.tag, scalar.round
            if name not in self._logged and (last or self._seen.get(name) == scalar.value):
                self._logged.add(name)
                found.append(scalar)
            self._seen[name] = scalar.value
        if found:
            self._trackers.call(self._names, lambda tracker: tracker.log(found))

    def end(self) -> None:
        """Give the trackers the rest of the records, and end the run."""
        self.look(last=True)
        if self._begun:
            done = (self._directory.path / "DONE").exists()
            self._trackers.call(self._names, lambda tracker: tracker.end(done=done))


class Trackers:
    """The trackers of a process by name; one that fails is reported, and gets nothing more."""

    def __init__(self) -> None:
        self._opened: dict[str, Tracker] = {}
        self._failed: set[str] = set()

    def open(self, names: Sequence[str], results: Path) -> None:
        """Open those of some names that are not open; they write into an experiment's folder."""
        from hpcps.records.tracking import TRACKERS

        for name in names:
            if name not in self._opened and name not in self._failed:
                with self._reporting(name):
                    self._opened[name] = TRACKERS[name](results / "export" / name)

    def call(self, names: Sequence[str], call: Callable[[Tracker], None]) -> None:
        """Call a function with each of some trackers."""
        for name in names:
            if name in self._opened:
                with self._reporting(name):
                    call(self._opened[name])

    @contextmanager
    def _reporting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            self._failed.add(name)
            self._opened.pop(name, None)
            sys.stderr.write(
                f"hpcps: warning: the tracker {name} failed: {printable(text_of(error))[:500]}; the runs go on "
                f"without it, and `hpcps export --to {name}` writes them later\n"
            )


def follow(requests: int) -> None:
    """Follow the runs that requests name, until their end.

    Args:
        requests: the file descriptor of the requests, a JSON object per line.
    """
    trackers = Trackers()
    run: FollowedRun | None = None
    text, pause = b"", _INTERVAL
    while True:
        ready, _, _ = select.select([requests], [], [], pause if run else None)
        if not ready:
            began = time.monotonic()
            if run is not None:
                run.look()
            pause = max(_INTERVAL, (time.monotonic() - began) / _SHARE)
            continue
        read = os.read(requests, 65536)
        *lines, text = (text + read).split(b"\n")
        for line in lines if read else [b"{}"]:
            request = json.loads(line)
            if run is not None:
                run.end()
                run = None
            if "run" in request:
                directory = RunDirectory(Path(request["run"]))
                trackers.open(request["to"], directory.path.parent.parent)
                run, pause = FollowedRun(directory, request["to"], trackers), _INTERVAL
        if not read:
            return


def _end_after(requests: int) -> None:
    """Wait until nobody writes requests any more; then end this process within seconds, whatever a tracker does."""
    closed = select.poll()
    closed.register(requests, 0)  # it reports the end of a pipe always, and nothing else here
    closed.poll()
    signal.alarm(round(_END))


def main() -> int:
    """Follow runs until the process that started this one ends, or closes the pipe; then end within seconds."""
    # A batch system sends them to all processes of a job; the process that started this one reacts.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # What the packages print is no output of hpcps. Their own processes inherit this, too.
    own, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    sys.stderr = os.fdopen(own, "w", buffering=1)
    os.nice(10)
    threading.Thread(target=_end_after, args=(0,), daemon=True).start()
    try:
        follow(0)
    except Exception as error:  # such as records that cannot be read any more
        sys.stderr.write(
            f"hpcps: warning: the experiment trackers ended: {printable(text_of(error))[:500]}; the runs go on without "
            "them, and `hpcps export` writes what they lack\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
