"""One process's record of one run: JSON lines, appended and flushed one by one."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import read_lines, whole_lines_end


class RecordWriter:
    """Appends the record lines of one role of one run to `records/<role>-<index>.jsonl`.

    A line is one JSON object and one `write` to the file, so that a killed process truncates at most its last line; the
    next attempt removes such a line and appends. The lines are strict JSON: a number that is not finite becomes the
    string `"nan"`, `"inf"` or `"-inf"`, which `hpcps.records.files.decode` converts back. numpy scalars and arrays are
    written as numbers and lists.
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
                `start` line states how many lines before it are valid (`continues`).
            on_line: called after each line that was written.

        Raises:
            RunError: the file cannot be opened or repaired.
        """
        self.path = Path(run_directory) / "records" / f"{role}-{index}.jsonl"
        self.attempt = 1
        """1 for a new record, one more each time an existing one is opened again; `start` lines carry it."""
        self._clock = clock
        self._on_line = on_line
        self._started = clock() - (part.elapsed if part else 0.0)
        self._continues: int | None = None
        self.run_id = run_id
        self._lines = 0
        self._head = json.dumps({"run": run_id, "role": role, "index": index, "host": host}, ensure_ascii=False)[1:-1]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise RunError(f"cannot open the record {self.path}: {error.strerror}") from error
        if os.fstat(self._file).st_size:
            os.ftruncate(self._file, whole_lines_end(self.path))
            earlier = read_lines(self.path)
            attempts = (line.get("attempt") for line in earlier.lines if line.get("event") == "start")
            self.attempt += max((n for n in attempts if isinstance(n, int)), default=0)
            self._lines = earlier.count
        if part:
            self._continues = min(part.lines, self._lines)

    def part(self, state: State) -> CheckpointPart:
        """Return this process's part of a checkpoint: a role's state, and the current position of the record."""
        return CheckpointPart(state, self._lines, self._clock() - self._started)

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
        if event == "start":
            values["attempt"] = self.attempt
            if self._continues is not None:
                values["continues"] = self._continues
        try:
            body = _ENCODER.encode(values)
        except ValueError:  # a number is not finite; this is rare, so the fast path does not check for it
            body = _ENCODER.encode(_finite(values))
        self._append(f'{{"event": "{event}", {self._head}, {body[1:]}\n'.encode(errors="backslashreplace"))

    def _append(self, line: bytes) -> None:
        """Append an encoded line."""
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise RunError(
                f"cannot write to the record {self.path}: {error.strerror}; free disk space and run again"
            ) from error
        if written != len(line):
            raise RunError(f"the record {self.path} is truncated: the disk is full; free disk space and run again")
        self._lines += 1
        if self._on_line is not None:
            self._on_line()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
