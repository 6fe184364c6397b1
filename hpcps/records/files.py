"""Writes files atomically, and reads JSON lines from a file that a process writes, or did not write to its end."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_json, regular


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file beside this one; rename it to this one at the end of the block."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, *content: str | bytes | memoryview) -> None:
    """Write a file from parts, atomically, so that it survives a power failure."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        for part in content:
            file.write(part.encode() if isinstance(part, str) else part)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing(what: object, advice: str = "") -> Iterator[None]:
    """Turn an `OSError` of the block into a `RunError`: `what` cannot be written, why, and the advice."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {what}: {error.strerror or error}{advice and f'; {advice}'}") from error


COUNTS = frozenset(
    (
        *("index", "round", "attempt", "step", "epoch", "version", "entry", "number", "request", "staleness", "queued"),
        *("participants", "absent", "samples", "overrun_steps", "malformed", "polls"),
        *("bytes_sent", "bytes_received", "messages_sent", "messages_received"),
        *("received_pairs", "sent_pairs", "skipped_pairs", "accepted_pairs", "accepted_sent_pairs", "turned_pairs"),
        *("rejected_blocks", "blocks_below_bound", "blocks_sent", "blocks_skipped", "blocks_attacked", "blocks"),
        *("time", "compute", "evaluate", "combine", "exchange", "wait", "delay", "cpu", "cpu_evaluate"),
    )
)
"""Fields with a count or with seconds."""

NUMBERS = COUNTS | {"loss", "accuracy"}
"""Fields with a number: anything else in them is that of a damaged line."""
MOST = 2.0**53
"""Below this, float64 holds every whole number."""
_LARGEST = 1e300
_EVALUATIONS = ("evaluation", "not_evaluated")
_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True)
class Lines:
    """The content of a record file.

    Attributes:
        lines: its complete lines, in order.
        damaged: the number of lines that are truncated or not a JSON object.
        numbers: the number of each of `lines` in the file, from 0, counting damaged lines.
    """

    lines: list[dict[str, Any]]
    damaged: int
    numbers: list[int]

    @property
    def count(self) -> int:
        """The number of lines, including damaged ones."""
        return len(self.lines) + self.damaged

    def valid(self) -> tuple[list[dict[str, Any]], int]:
        """Return the lines that are valid, and the number of the attempt that wrote the first of them.

        A new attempt starts again, unless it resumes from a checkpoint: then the lines before the checkpoint are valid.
        """
        valid, first = self._valid()
        return [line for _, line in valid], first

    def until_step(self, step: int, memberships: int) -> int:
        """Return the number of lines up to the last valid one before those that count more local steps.

        Args:
            step: the local steps.
            memberships: how many numbers of workers the run had had when it counted them. Each counts steps in its own
                way, so lines of earlier ones are before, and lines of later ones are not.
        """
        known, of_line = 1, {}
        for number, line in zip(self.numbers, self.lines, strict=True):
            if line.get("event") == "start":
                known = len(line.get("members", [None]))
            of_line[number] = known
        counts = ((number, of_line[number], line.get("step")) for number, line in self._valid()[0])
        after = ((number, of, isinstance(each, int) and each > step) for number, of, each in counts)
        kept = 0
        for number, of, more in after:
            if of > memberships or (of == memberships and more):
                return kept
            kept = number + 1
        return self.count

    def evaluated(self, lines: int) -> int:
        """Return the last epoch that the valid ones of so many lines say is evaluated, or is not; 0 if none does."""
        said = (line for number, line in self._valid()[0] if number < lines and line.get("event") in _EVALUATIONS)
        return max((epoch for line in said if isinstance(epoch := line.get("epoch"), int)), default=0)

    def _valid(self) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Return the valid lines with their numbers, and the number of the attempt that wrote the first of them."""
        # Of each `start` line its number, the lines before it that are valid, as ranges, and the first attempt.
        starts: list[tuple[int, list[range], int]] = [(0, [], 1)]
        for number, line in zip(self.numbers, self.lines, strict=True):
            if line.get("event") in ("start", LEFT):
                attempt, continues = line.get("attempt", len(starts)), line.get("continues")
                if isinstance(continues, int):
                    then = min(max(continues, 0), number)
                    since, before, first = next(each for each in reversed(starts) if each[0] <= max(then - 1, 0))
                    starts.append((number, [*before, range(since, then)], first))
                else:
                    starts.append((number, [], attempt if isinstance(attempt, int) else len(starts) + 1))
        since, before, first = starts[-1]
        valid = [*before, range(since, self.count)]
        lines = zip(self.numbers, self.lines, strict=True)
        return [(number, line) for number, line in lines if any(number in each for each in valid)], first


def decode(line: bytes) -> dict[str, Any] | None:
    """Read one line; None if it is not a JSON object.

    No process writes a table in the place of a number, nor a count or a time of 2^53 or more, negative ones included:
    these are of a damaged line, and unknown (None). Other numbers beyond 1e300 are infinite, so that sums and
    percentages of finite numbers are finite.
    """
    try:
        value = parse_json("", line)
    except InputError:
        return None
    if not isinstance(value, dict):
        return None
    for key, item in value.items():
        number = _NOT_FINITE.get(item) if isinstance(item, str) else item
        if isinstance(number, (int, float)):
            value[key] = number if -MOST < number < MOST else _large(key, number)
        elif isinstance(item, dict) and key in NUMBERS:
            value[key] = None
    return value


def _large(key: str, number: float) -> float | None:
    """Return a number of 2^53 or more, or one that is not finite, as it counts in a field."""
    if key in COUNTS:
        return None
    return math.inf if number > _LARGEST else -math.inf if number < -_LARGEST else number


def decode_all(text: bytes) -> Lines:
    """Read the lines of a text; a last line without a newline is truncated."""
    parts = text.split(b"\n")
    decoded = [decode(part) for part in parts[:-1]]
    lines = [line for line in decoded if line is not None]
    numbers = [number for number, line in enumerate(decoded) if line is not None]
    return Lines(lines, len(decoded) - len(lines) + bool(parts[-1]), numbers)


def read_lines(path: Path) -> Lines:
    """Read a whole record file.

    Raises:
        OSError: the file cannot be read.
    """
    return decode_all(regular(path).read_bytes())


LEFT = "left"
"""The event of a worker that has left the run; its line says how many lines before it are valid, as `start` does."""

RECORDS = "records/*-*.jsonl"
"""The pattern of the records in a run's folder, one of each process."""


def record_file(run: Path, process: str) -> Path:
    """Return the record of a process, such as `worker-3`, in a run's folder."""
    return run / "records" / f"{process}.jsonl"


@dataclass(frozen=True)
class Prefix:
    """The first lines of a record file.

    Attributes:
        lines: their number.
        sha256: the checksum of their bytes; empty if it is not known.
    """

    lines: int
    sha256: str = ""


def prefix_of(path: Path, most: int = sys.maxsize) -> Prefix:
    """Return the complete lines at the start of a file, at most so many.

    Raises:
        OSError: the file cannot be read.
    """
    content = regular(path).read_bytes()
    lines = end = 0
    if most >= (count := content.count(b"\n")):
        lines, end = count, content.rfind(b"\n") + 1
    else:
        while lines < most:
            lines, end = lines + 1, content.index(b"\n", end) + 1
    return Prefix(lines, hashlib.sha256(content[:end]).hexdigest())


def sync_file(path: Path) -> None:
    """Have the content of a file, which any process has written, survive a power failure.

    Raises:
        OSError: it cannot be opened or written.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Have the names of the files in a folder survive a power failure, where the file system can do so."""
    with suppress(OSError):
        sync_file(path)


def whole_lines_end(path: Path) -> int:
    """Return the offset after the file's last newline: the start of a truncated line, or the end of the file."""
    with regular(path).open("rb") as file:
        end = file.seek(0, 2)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


class Tail:
    """Reads the lines appended to one record file since the last read.

    Attributes:
        path: the file.
        changed: the time of the last write, in seconds since 1970; 0 if the file does not exist.
    """

    def __init__(self, path: Path, first: int) -> None:
        """Start at most `first` bytes before the file's end."""
        self.path = path
        self.changed = 0.0
        self._first = first
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the new complete lines; none if the file cannot be read."""
        try:
            now = self.path.stat()
            self.changed = now.st_mtime
            if self._offset is None or now.st_size < self._offset:  # shorter: a new attempt removed a truncated line
                self._offset, self._rest = max(0, now.st_size - self._first), b""
            if now.st_size == self._offset:
                return []
            with regular(self.path).open("rb") as file:
                file.seek(self._offset)
                text = file.read(now.st_size - self._offset)
        except OSError:
            return []
        self._offset += len(text)
        whole, newline, self._rest = (self._rest + text).rpartition(b"\n")
        return decode_all(whole + newline).lines
