"""Starts the processes of a measurement, waits for them, and leaves none behind."""

from __future__ import annotations

import os
import re
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
"""GiB that stay free: what needs more is stopped, before the kernel does it to someone else."""
TOO_LARGE = "it needs more memory than there is"
TRIES = 4
"""How often a measurement is begun where a port that was free when it was chosen is taken when it is used."""

_TAKEN = re.compile(rb"bind failed|address (is )?already in use|EADDRINUSE|port is in use", re.IGNORECASE)
GRACE = 5.0
"""Seconds that processes have to end by themselves: a launcher ends its ranks."""
_LINES = 8
"""Last lines of a process that are shown if it failed."""

T = TypeVar("T")


@dataclass(frozen=True)
class Command:
    """One process to start.

    Attributes:
        words: its command line.
        variables: of its environment, beside those of this process.
        name: what it is called if it fails; by default as its program.
    """

    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = ""

    def __str__(self) -> str:
        return self.name or Path(self.words[0]).name


class MeasurementError(Exception):
    """A measurement failed; the text says why."""


class NotHereError(MeasurementError):
    """This machine lacks what it needs; the text says what."""


class PortTakenError(MeasurementError):
    """A process could not have the address that it was to listen at."""


def free_port() -> int:
    """Return a port of this machine that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def on_free_ports(measure: Callable[[], T]) -> T:
    """Measure, and begin again where somebody else took a port between its choice and its use.

    Args:
        measure: measures, with ports that it chooses each time.

    Raises:
        PortTakenError: that happened a few times.
    """
    for _ in range(TRIES - 1):
        try:
            return measure()
        except PortTakenError as error:
            print(f"{error}: once more, with other ports", flush=True)
    return measure()


def clean_up_on_sigterm() -> None:
    """Let SIGTERM end this process as an error does, so that processes and hosts are taken away."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def free_gigabytes() -> float:
    """Return the memory that processes can still have, in GiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return float("inf")


def run_together(
    commands: Sequence[Command], logs: Path, timeout: float, look: Callable[[], None] = lambda: None
) -> str:
    """Start processes, each the leader of a group, and wait until all have ended well.

    Args:
        commands: what to start.
        logs: the folder to make for what they print, one file for each.
        timeout: seconds.
        look: called now and then meanwhile.

    Returns:
        What went wrong: who failed first and with which words, that memory ran short, or who was still there when it
        took too long; nothing if all is well.

    Raises:
        PortTakenError: one of them says that it could not listen where it was to, whether it ended or not.
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
                # Not everything that cannot listen ends, and the others wait for it.
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
    """End the groups of processes: gently, all of them, then at once those that are still there.

    Args:
        processes: the leaders.
        grace: seconds in between.
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
    environment = {**os.environ, **command.variables}
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
    """Show the last lines of who failed; return its name and the line that says most."""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    for line in lines[-_LINES:]:
        print(f"  {command}: {line}", file=sys.stderr, flush=True)
    told = [line for line in lines if "rror" in line] or lines or ["it said nothing"]
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{command} ended with {how}: {told[-1].strip()[:200]}"
