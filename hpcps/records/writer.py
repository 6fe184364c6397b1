"""One process's record of one run: JSON lines, appended and flushed one by one."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix, read_lines, record_file, sync_folder, whole_lines_end


class RecordLines(ABC):
    """Makes the record lines of one role of one run.

    The lines are strict JSON: a number that is not finite becomes the string `"nan"`, `"inf"` or `"-inf"`, which
    `hpcps.records.files.decode` converts back. numpy scalars and arrays are written as numbers and lists.

    Attributes:
        run_id: the run.
    """

    def __init__(self, run_id: str, role: str, index: int, host: str, clock: Callable[[], float], elapsed: float):
        """Take what all lines have in common.

        Args:
            run_id: the run.
            role: `"worker"`, `"validator"`, `"server"`, …
            index: the role's index.
            host: the machine this process is on.
            clock: returns seconds.
            elapsed: the seconds from which `time` continues now.
        """
        self.run_id = run_id
        self._clock = clock
        self._started = clock() - elapsed
        self._head = json.dumps({"run": run_id, "role": role, "index": index, "host": host}, ensure_ascii=False)[1:-1]

    @property
    def time(self) -> float:
        """Seconds since the start of the record: the default of `time` in a line that is written now."""
        return round(self._clock() - self._started, 6)

    def write(self, event: str, **fields: object) -> None:
        """Append one line: the event, the common fields, `time`, then the given fields.

        Raises:
            RunError: the line could not be written completely (disk full, quota).
        """
        values: dict[str, object] = {"time": self.time, **fields}
        try:
            body = _ENCODER.encode(values)
        except ValueError:  # a number is not finite; this is rare, so the fast path does not check for it
            body = _ENCODER.encode(_finite(values))
        self.append(f'{{"event": "{event}", {self._head}, {body[1:]}\n'.encode(errors="backslashreplace"))

    @property
    @abstractmethod
    def lines_of_attempt(self) -> int | None:
        """The number of lines after the `start` line of this attempt; None if it has none yet."""

    @abstractmethod
    def append(self, line: bytes) -> None:
        """Append an encoded line.

        Raises:
            RunError: the line could not be written completely (disk full, quota).
        """

    @abstractmethod
    def part(self, state: State) -> CheckpointPart:
        """Return this process's part of a checkpoint: a role's state, and the lines of the record so far."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until all lines so far are on disk, so that they survive a power failure.

        Raises:
            RunError: they cannot be written (disk full, quota).
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file; a second call does nothing."""


class RecordWriter(RecordLines):
    """Appends the record lines of one role of one run to `records/<role>-<index>.jsonl`.

    A line is one JSON object and one `write` to the file, so that a killed process truncates at most its last line; the
    next attempt removes such a line and appends.
    """

    def __init__(
        self,
        run_directory: Path,
        run_id: str,
        role: str,
        index: int,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        part: CheckpointPart | None = None,
        attempt: int | None = None,
        on_line: Callable[[], None] | None = None,
    ) -> None:
        """Open the record, and remove a last line that an earlier attempt left truncated.

        Args:
            run_directory: the run's folder; `records/` is created in it.
            run_id: the run.
            role: `"worker"`, `"validator"`, `"server"`, …
            index: the role's index.
            host: the machine this process is on.
            clock: returns seconds; `time` in each line is relative to now on this clock.
            part: the part of a checkpoint from which the process resumes: `time` continues from it, and the next
                `start` line states how many lines before it are valid (`continues`), and whether the process was lost
                (`without_part`).
            attempt: the number of this attempt of the run; by default, one more than that of the last in the record.
            on_line: called after each line that was written.

        Raises:
            RunError: the file cannot be opened or repaired.
        """
        self.path = record_file(Path(run_directory), f"{role}-{index}")
        self.attempt = 1 + last_attempt(self.path) if attempt is None else attempt
        """The number of the attempt, from 1; `start` lines carry it."""
        super().__init__(run_id, role, index, host, clock, part.elapsed if part else 0.0)
        self._on_line = on_line
        self._continues = part.record.lines if part else None
        self._of_lost = part is not None and part.of_lost
        self._lines = 0
        # The number of lines up to the `start` line of this attempt, if it is known.
        self._before: int | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_fifo():
                raise OSError(errno.EINVAL, "it is a pipe, and not a file")
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise RunError(f"cannot open the record {self.path}: {error.strerror}") from error
        self._synced = False
        self._sha256 = hashlib.sha256()
        if os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole_lines_end(self.path))
            content = self.path.read_bytes()
            self._lines = content.count(b"\n")
            self._sha256.update(content)

    def resume(self, lines: int, elapsed: float) -> None:
        """Go on from an earlier attempt with the next `start` line.

        Args:
            lines: how many lines before it are valid.
            elapsed: the seconds from which `time` continues.
        """
        self._continues, self._started = lines, self._clock() - elapsed

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self._lines

    def part(self, state: State) -> CheckpointPart:
        return CheckpointPart(state, Prefix(self._lines, self._sha256.hexdigest()), self._clock() - self._started)

    @property
    def lines_of_attempt(self) -> int | None:
        if self._before is None:
            lines = read_lines(self.path)
            for number, line in zip(lines.numbers, lines.lines, strict=True):
                if (line["event"], line.get("attempt")) == ("start", self.attempt):
                    self._before = number + 1
        return None if self._before is None else self._lines - self._before

    def sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritable(error) from error
        if not self._synced:
            sync_folder(self.path.parent)
            self._synced = True

    def write(self, event: str, **fields: object) -> None:
        if event == "start":
            fields["attempt"] = self.attempt
            if self._continues is not None:
                fields["continues"] = self._continues
            if self._of_lost:
                fields["without_part"] = True
            self._before = self._lines + 1
        super().write(event, **fields)

    def append(self, line: bytes) -> None:
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise self._unwritable(error) from error
        if written != len(line):
            raise RunError(f"the record {self.path} is truncated: the disk is full; free disk space and run again")
        self._lines += 1
        self._sha256.update(line)
        if self._on_line is not None:
            self._on_line()

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"cannot write to the record {self.path}: {error.strerror}; free disk space and run again")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def elapsed_in(path: Path) -> float:
    """Return the seconds from the beginning of the record of another process until now; 0 without a record.

    The time of the last line, and that of the file, tell how long ago that was.

    Raises:
        OSError: the record cannot be read.
    """
    if not path.exists():
        return 0.0
    lines = read_lines(path).lines
    return float(lines[-1]["time"]) + max(0.0, time.time() - path.stat().st_mtime) if lines else 0.0


def last_attempt(record: Path) -> int:
    """Return the number of the last attempt in a record; 0 if there is none."""
    with suppress(OSError):
        if not record.stat().st_size:  # it is empty, or a device or a pipe
            return 0
        starts = [line for line in read_lines(record).lines if line.get("event") == "start"]
        return max((n for line in starts if isinstance(n := line.get("attempt"), int)), default=0)
    return 0


def _plain(value: Any) -> object:
    """Convert a numpy scalar or array to a JSON value, and anything else to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _finite(value: object) -> object:
    """Replace numbers that are not finite by their names, at any depth of nesting."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return _finite(_plain(value))


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)
