"""Starts the processes of a measurement, waits for them, and ends all of them."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
RESERVE = 1.0
"""The memory that must stay free, in GiB: a measurement is stopped before the kernel kills other processes."""
TOO_LARGE = "it needs more memory than there is"
TRIES = 4
"""The number of attempts of a measurement if another program takes a port between its choice and its use."""

_TAKEN = re.compile(rb"bind failed|address (is )?already in use|EADDRINUSE|port is in use", re.IGNORECASE)
GRACE = 5.0
"""Seconds after which processes that were asked to end are killed; a launcher ends its ranks in that time."""
_LINES = 8
"""The number of last lines of a failed process that are shown."""

T = TypeVar("T")


@dataclass(frozen=True)
class Command:
    """One process to start.

    Attributes:
        words: its command line.
        variables: environment variables in addition to those of this process.
        name: its name in messages about failures; by default that of its program.
    """

    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def __str__(self) -> str:
        return self.name or Path(self.words[0]).name


class MeasurementError(Exception):
    """A measurement failed; the text says why."""


class NotHereError(MeasurementError):
    """This machine lacks something that the measurement needs; the text says what."""


class PortTakenError(MeasurementError):
    """The address at which a process was to listen is in use."""


class AnsweringProcess:
    """A process that answers each line of its input with a line."""

    def __init__(
        self,
        name: str,
        words: Sequence[str | Path],
        timeout: float,
        variables: Mapping[str, str],
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start it.

        Args:
            name: its name in messages.
            words: its command line.
            timeout: the time limit for an answer, in seconds.
            variables: environment variables in addition to those of this process.
            descriptors: the file descriptors that it inherits.
        """
        self._name, self._timeout = name, timeout
        pipe, environment = subprocess.PIPE, {**os.environ, **variables}
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, pass_fds=tuple(descriptors), start_new_session=True, env=environment
        )

    def ask(self, line: str) -> str:
        """Send a line, and return the answer without its end.

        Raises:
            MeasurementError: the process ended, or did not answer in time.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended, which reading the answer reports
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        """Return the next line without its end; see `ask`."""
        out = self._process.stdout
        assert out is not None
        # It writes whole lines, so a readable pipe holds one. `select` supports only 1024 descriptors.
        ready = select.poll()
        ready.register(out, select.POLLIN)
        if not ready.poll(self._timeout * 1000):
            self.close()
            raise MeasurementError(f"{self._name} did not answer in {self._timeout:g} s")
        answer = out.readline().decode().strip()
        if not answer:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)  # else the status is that of the signal which ends it
            self.close()
            raise MeasurementError(f"{self._name} ended with status {self._process.returncode}; its last lines say why")
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        end([self._process], GRACE)
        self._process.stdout.close()


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def on_free_ports(measure: Callable[[], T]) -> T:
    """Measure, and try again if another program took a port between its choice and its use.

    Args:
        measure: measures, and chooses its ports at each call.

    Raises:
        PortTakenError: all attempts failed in this way.
    """
    for _ in range(TRIES - 1):
        try:
            return measure()
        except PortTakenError as error:
            print(f"{error}: once more, with other ports", flush=True)
    return measure()


def clean_up_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that processes and hosts are removed."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def free_gigabytes() -> float:
    """Return the memory that is available to processes, in GiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return float("inf")


def run_together(
    commands: Sequence[Command], logs: Path, timeout: float, look: Callable[[], None] = lambda: None
) -> str:
    """Start processes, each the leader of a group, and wait until all have succeeded.

    Args:
        commands: the processes.
        logs: the folder to create for their output, one file for each.
        timeout: the time limit, in seconds.
        look: called regularly in the meantime.

    Returns:
        The failure: the first process that failed and its message, a shortage of memory, or the processes that were
        still running at the time limit; empty if all succeeded.

    Raises:
        PortTakenError: a process prints that its address is in use, whether it ends or not.
    """
    logs.mkdir()
    files = [logs / f"{number}" for number in range(len(commands))]
    processes: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + timeout
    heard = 0
    try:
        for command, file in zip(commands, files, strict=True):
            processes.append(_start(command, file))
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            if free_gigabytes() < RESERVE:
                return TOO_LARGE
            if time.monotonic() > until:
                there = [str(c) for c, process in zip(commands, processes, strict=True) if process.poll() is None]
                return f"it took longer than {timeout:.0f} s; {', '.join(there)} had not ended"
            said = sum(file.stat().st_size for file in files)
            if said != heard:
                # A program that cannot listen may not end, and the others wait for it.
                _look_for_taken_ports(commands, files)
            heard = said
            look()
            time.sleep(0.05)
        for command, process, file in zip(commands, processes, files, strict=True):
            if process.returncode:
                _look_for_taken_ports(commands, files)
                return _failure(command, process.returncode, file)
        return ""
    finally:
        end(processes, GRACE)


def end(processes: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
    """End groups of processes: send SIGTERM to all, and SIGKILL to those that are still running after a while.

    Args:
        processes: the leaders.
        grace: the seconds between the two signals.
    """
    there = [process for process in processes if process.poll() is None]
    for process in there:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    until = time.monotonic() + grace
    for process in there:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _start(command: Command, file: Path) -> subprocess.Popen[bytes]:
    # A Python that buffers stdout writes it after the message on stderr that it ends with.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **command.variables}
    with file.open("wb") as output:
        return subprocess.Popen(
            command.words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _look_for_taken_ports(commands: Sequence[Command], files: Sequence[Path]) -> None:
    for command, file in zip(commands, files, strict=True):
        for line in file.read_bytes().splitlines():
            if _TAKEN.search(line):
                raise PortTakenError(f"{command}: {line.decode(errors='replace').strip()[:200]}")


def _failure(command: Command, status: int, file: Path) -> str:
    """Print the last lines of a failed process; return its name and its most informative line."""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    for line in lines[-_LINES:]:
        print(f"  {command}: {line}", file=sys.stderr, flush=True)
    told = [line for line in lines if "rror" in line] or lines or ["it said nothing"]
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{command} ended with {how}: {told[-1].strip()[:200]}"
