"""Runs a command that may hang or crash, with a deadline for it and for all processes that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GRACE = 2.0
"""Seconds between SIGTERM, which launchers forward to their ranks, and SIGKILL."""

_MOST = 2**20


@dataclass(frozen=True)
class CommandResult:
    """The answer of a command.

    Attributes:
        problem: why it gave none: it did not start, took too long, or failed; empty after exit status 0.
        output: its standard output, at most 1 MiB.
        errors: its standard error, at most 1 MiB.
        expired: whether it was ended at the deadline.
    """

    problem: str
    output: str = ""
    errors: str = ""
    expired: bool = False


def ask(command: Sequence[str | Path], seconds: float, environment: Mapping[str, str] | None = None) -> CommandResult:
    """Run a command without input; end it, and all processes of its group, after some seconds.

    The output goes to files: a process that survives its parent keeps a pipe open, and reading it would not end.

    Args:
        command: the program and its arguments.
        seconds: the deadline.
        environment: the environment variables; default: those of this process.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            return CommandResult(f"cannot be started: {error.strerror}")
        expired = False
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            expired = True
        finally:
            _end(process)
        printed, said = _text(output), _text(errors)
    problem = f"does not answer within {seconds:g} s" if expired else _ending(process.returncode, printed, said)
    return CommandResult(problem, printed, said, expired)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_MOST).decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it has left running in its group."""
    for number in (signal.SIGTERM, signal.SIGKILL) if process.poll() is None else (signal.SIGKILL,):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        deadline = time.monotonic() + _GRACE
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)


def _ending(status: int | None, output: str, errors: str) -> str:
    if status == 0:
        return ""
    if status is None:
        return "cannot be killed"
    lines = [line.strip() for line in f"{output}\n{errors}".splitlines() if line.strip()]
    said = f": {lines[-1][:200]}" if lines else ""
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"was killed by {names.get(-status, f'signal {-status}')}{said}"
    return f"ended with status {status}{said}"
