"""Executes a plugin file in a child process first: what ends or blocks a process there is one error here."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from hpcps.registry.kinds import failure_of

LIMIT = 60.0
"""Seconds that a plugin may take; a cold file system may need many of them for the packages that it imports."""

_MOST = 1 << 16
_DUMP = signal.SIGUSR2
_ENDED = b"\0"


@dataclass(frozen=True)
class Trouble:
    """Why a plugin file must not be executed in this process.

    Attributes:
        what: the reason.
        line: the line of the file that was being executed; 1 if it is not known.
    """

    what: str
    line: int


def trouble(path: Path, execute: Callable[[], object]) -> Trouble | None:
    """Execute a plugin file in a child process; return why it would end or block this one, or None.

    The child is a fork: it has all modules of this process, so the trial takes little longer than the file itself.
    Ordinary exceptions are no trouble: executing the file here raises them.

    Args:
        path: the file.
        execute: executes it; its output is dropped.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads. The child uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        leave = os._exit
        try:
            os.close(reader)
            _execute(execute, writer)
        finally:
            leave(1)  # a copy of this process must not go on, whatever happens
    os.close(writer)
    expired, status = False, None
    try:
        said = _read(reader, LIMIT)
        if expired := said is None:
            with suppress(ProcessLookupError):
                os.kill(child, _DUMP)  # it tells where it is
            said = _read(reader, 1.0, until=b"\n\n") or b""
    finally:
        os.close(reader)
        for kill in (os.kill, os.killpg):  # it may not have its own group yet
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    text = (said or b"").decode(errors="replace")
    if text.endswith(_ENDED.decode()):
        return None
    found = re.search(rf'File "{re.escape(str(path))}", line (\d+)', text)
    line = int(found[1]) if found else 1
    if expired:
        return Trouble(
            f"it is not loaded after {LIMIT:g} s: a plugin only defines classes, and the run calls them", line
        )
    if raised := re.search(r"^raised (.*)$", text, re.MULTILINE):
        return Trouble(raised[1], line)
    number = os.waitstatus_to_exitcode(status)
    if number < 0:
        return Trouble(f"loading it crashes the process with signal {-number} ({signal.Signals(-number).name})", line)
    return Trouble(f"it ends the process with status {number} when it is loaded: raise an exception instead", line)


def _execute(execute: Callable[[], object], writer: int) -> None:
    """Execute the file in the child, and tell how it ended."""
    leave = os._exit

    def leave_with_trace(status: int) -> None:
        faulthandler.dump_traceback(writer, all_threads=False)
        leave(status)

    try:
        os.setsid()  # so that processes that the file starts end with the child
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        sys.stdout = sys.stderr = os.fdopen(null, "w")  # a notebook has streams of its own
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(LIMIT) + 3)  # for a child whose parent was killed before it could end it
        faulthandler.enable(writer, all_threads=False)
        faulthandler.register(_DUMP, writer, all_threads=False)
        os._exit = leave_with_trace  # type: ignore[assignment]
        execute()
    except (Exception, SystemExit):
        pass
    except BaseException as error:
        try:
            trace = error.__traceback__
            places = []
            while trace is not None:
                places.append(f'File "{trace.tb_frame.f_code.co_filename}", line {trace.tb_lineno}\n')
                trace = trace.tb_next
            os.write(writer, "".join(reversed(places)).encode()[:_MOST])
            os.write(writer, f"raised {failure_of(error)}".encode()[:_MOST].partition(b"\n")[0] + b"\n")
        finally:
            leave(1)  # whatever the exception does when it is described: this is a copy of the parent
    if closed := [stream for stream in range(3) if not _is_open(stream)]:
        os.write(
            writer, f"raised OSError: it closes the file descriptor {closed[0]}, which the command needs\n".encode()
        )
        leave(1)
    os.write(writer, _ENDED)
    leave(0)


def _is_open(stream: int) -> bool:
    try:
        os.fstat(stream)
    except OSError:
        return False
    return True


def _read(reader: int, seconds: float, until: bytes = _ENDED) -> bytes | None:
    """Read what the child tells until it has ended; None if it has not after so many seconds."""
    deadline, said = time.monotonic() + seconds, b""
    while not said.endswith(until):
        if not wait([reader], max(0.0, deadline - time.monotonic())):
            return said if until != _ENDED else None
        part = os.read(reader, _MOST)
        if not part:
            break
        said += part
    return said
