"""Runs a program that trains, kills its processes now and then, and notes when its rounds end."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

WORKERS = 8
STEP = 0.45
"""The imposed seconds of a local step, most of a round: so that many processes fit few cores."""
MARK = "SURVIVAL"
_GRACE = 60.0
"""Seconds that a program has to end."""


@dataclass(frozen=True)
class Program:
    """What is measured.

    Attributes:
        words: returns its command line, given the folder that it may use.
        rounds: the pattern, in that folder, of the file to which it appends a JSON line with `"event": "round"` and the
            `round` at the end of each round.
        role: returns the role of a process, given its command line; None if it is not to be killed.
        updates: returns the updates that were combined in each round, given the folder; a later round counts as one
            with an update of each worker.
        again: returns the rounds that were computed again because their results were lost, given the folder.
        stated: tells from what it says at its end whether that is a stated limit, and not a defect.
    """

    words: Callable[[Path], list[str]]
    rounds: str
    role: Callable[[list[str], Path, int], str | None]
    updates: Callable[[Path], Mapping[int, int]]
    again: Callable[[Path], int]
    stated: Callable[[str], bool] = lambda text: False


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        updates: the updates that were combined in the time; each counts once.
        round: the median seconds of a round.
        kills: the number of killed processes of each role.
        next: seconds from each kill to the end of the next round, by the role of the process.
        whole: seconds from each kill to the end of the next round that had not begun.
        again: the rounds that were computed again because their results were lost.
        ended: what the program said when it ended before the time was over; empty if it did not.
    """

    updates: int
    round: float
    kills: dict[str, int] = field(default_factory=dict)
    next: dict[str, list[float]] = field(default_factory=dict)
    whole: dict[str, list[float]] = field(default_factory=dict)
    again: int = 0
    ended: str = ""


@dataclass(frozen=True)
class _Kill:
    role: str
    time: float
    highest: int


class Rounds:
    """The ends of rounds, as they are seen in a file that grows."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._file: Path | None = None
        self._read, self._rest = 0, b""
        self.ends: list[tuple[float, int]] = []

    @property
    def highest(self) -> int:
        """The number of the last round; -1 if there is none."""
        return max((number for _, number in self.ends), default=-1)

    def look(self) -> None:
        """Read what has been appended."""
        self._file = self._file or next(self._folder.glob(self._pattern), None)
        if self._file is None:
            return
        with self._file.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        now = time.monotonic()
        self._read += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        for text in whole:
            if b'"event": "round"' in text:
                self.ends.append((now, int(json.loads(text)["round"])))

    def after(self, kill: _Kill, rounds: int) -> float | None:
        """Return the seconds from a kill until so many further rounds had ended; None if they did not."""
        moments = (moment for moment, number in self.ends if moment >= kill.time and number >= kill.highest + rounds)
        return next((moment - kill.time for moment in moments), None)


def measure(program: Program, folder: Path, seconds: float, every: float | None, seed: int) -> Measured:
    """Run a program for some seconds from a round on, and kill a process of a random role every few seconds.

    Raises:
        SystemExit: it ended, for another reason than a stated limit.
    """
    mark = f"{random.Random(f'{seed} {every} {folder}').randrange(1 << 40)}"
    output = folder / "output.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            program.words(folder),
            env={**os.environ, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    rounds, kills, stream, ended = Rounds(folder, program.rounds), [], random.Random(seed), ""
    try:
        while rounds.highest < 1:
            rounds.look()
            time.sleep(0.02)
            if process.poll() is not None:
                raise SystemExit(f"it has ended:\n{output.read_text()}")
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            rounds.look()
            if every is not None and passed > (len(kills) + 1) * every and (there := victims(program, folder, mark)):
                role = stream.choice(sorted(there))
                rounds.look()  # a round that ended while the processes were looked up is none after the kill
                kills.append(_Kill(role, time.monotonic(), rounds.highest))
                with suppress(ProcessLookupError):
                    os.kill(stream.choice(there[role]), signal.SIGKILL)
            time.sleep(0.02)
            if process.poll() is not None:
                ended = output.read_text()
                if not program.stated(ended):
                    raise SystemExit(f"it has ended:\n{ended}")
                break
    finally:
        end(process, mark)
    return _measured(program, folder, rounds, kills, (began, began + seconds), ended)


def _measured(
    program: Program,
    folder: Path,
    rounds: Rounds,
    kills: Sequence[_Kill],
    time: tuple[float, float],
    ended: str,
) -> Measured:
    # A round that was computed again counts when it ended for the last time.
    last = {number: moment for moment, number in rounds.ends if moment <= time[1]}
    inside = {number: moment for number, moment in last.items() if moment > time[0]}
    updates = program.updates(folder)
    if not (lengths := [b - a for a, b in pairwise(sorted(inside.values()))]):
        raise SystemExit(f"fewer than two rounds ended within {time[1] - time[0]:g} s: measure longer")
    recoveries: list[dict[str, list[float]]] = []
    for further in (1, 2):
        recoveries.append({})
        for kill in kills:
            if (found := rounds.after(kill, further)) is not None:
                recoveries[-1].setdefault(kill.role, []).append(round(found, 3))
    return Measured(
        sum(updates.get(number, WORKERS) for number in inside),
        round(statistics.median(lengths), 4),
        dict(Counter(kill.role for kill in kills)),
        *recoveries,
        program.again(folder),
        " ".join(ended.split())[-400:],
    )


def victims(program: Program, folder: Path, mark: str) -> dict[str, list[int]]:
    """Return the processes of a program that may be killed, by their role."""
    found: dict[str, list[int]] = {}
    for pid, words in _processes(mark).items():
        if role := program.role(words, folder, pid):
            found.setdefault(role, []).append(pid)
    return {role: sorted(pids) for role, pids in found.items()}


def _processes(mark: str) -> dict[int, list[str]]:
    """Return the command lines of the processes that a program has started."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = words
        except OSError:
            continue
    return found


def end(process: subprocess.Popen[Any], mark: str) -> None:
    """End a program, and kill what is left of it."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE)
    finally:
        for pid in _processes(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
