"""Starts the processes of a measurement, waits for them, and leaves none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESERVE = 1.0
"""GiB that stay free: what needs more is stopped, before the kernel does it to someone else."""


@dataclass(frozen=True)
class Command:
    """One process to start."""

    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


class MeasurementError(Exception):
    """A measurement failed; the text says why."""


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
    commands: Sequence[Command], log: Path, timeout: float, look: Callable[[], None] = lambda: None
) -> str:
    """Start processes, each the leader of a group, and wait until all have ended well.

    Args:
        commands: what to start.
        log: the file for what they print.
        timeout: seconds.
        look: called now and then meanwhile.

    Returns:
        What went wrong: one failed, memory ran short, or it took too long; nothing if all is well.
    """
    processes: list[subprocess.Popen[bytes]] = []
    until = time.monotonic() + timeout
    try:
        with log.open("wb") as output:
            for command in commands:
                environment = {**os.environ, **command.variables}
                processes.append(
                    subprocess.Popen(
                        command.words,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            if free_gigabytes() < RESERVE:
                return "it needs more memory than there is"
            if time.monotonic() > until:
                return f"it took longer than {timeout:.0f} s"
            look()
            time.sleep(0.05)
        return _last_words(log) if any(process.returncode for process in processes) else ""
    finally:
        for process in processes:
            _end(process)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if "rror" in line] or lines or ["it failed without a word"]
    return told[-1].strip()[:200]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process's group: gently, so that a launcher can end its ranks, then at once."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
