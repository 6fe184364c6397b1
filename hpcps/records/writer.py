"""One process's record of one run: JSON lines, appended and flushed one by one."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from hpcps.errors import RunError
from hpcps.records.checkpoint import Part
from hpcps.records.lines import read_lines, whole_lines_end
from hpcps.state import State


class RecordWriter:
    """Appends what one role of one run did to `records/<role>-<index>.jsonl`.

    A line is one JSON object and one `write` to the file, so that a killed process leaves at most its last line torn;
    the next attempt cuts a torn line off and appends. The lines are strict JSON: a number that is not finite becomes
    the string `"nan"`, `"inf"` or `"-inf"`, which `hpcps.records.lines.decode` turns back. numpy scalars and arrays
    are written as numbers and lists.
    """

    def __init__(
        self,
        run_directory: Path,
        run_id: str,
        role: str,
        index: int,
        host: str,
        clock: Callable[[], float] = time.monotonic,
        part: Part | None = None,
    ) -> None:
        """Open the record, and cut off a line that an earlier attempt left torn.

        Args:
            run_directory: the run's folder; `records/` is made in it.
            run_id: the run.
            role: `"worker"`, `"validator"`, `"server"`, …
            index: the role's index.
            host: the machine this process is on.
            clock: seconds; `time` in each line counts from now on this clock.
            part: the part of a checkpoint that the process goes on from: `time` counts on, and the next `start` line
                says how many lines before it still hold (`continues`).

        Raises:
            RunError: the file cannot be opened or repaired.
        """
        self.path = Path(run_directory) / "records" / f"{role}-{index}.jsonl"
        self.attempt = 1
        """1 for a new record, one more each time an existing one is opened again; `start` lines carry it."""
        self._clock = clock
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

    def part(self, state: State) -> Part:
        """Return this process's part of a checkpoint, with a role's state: where the record is now."""
        return Part(state, self._lines, self._clock() - self._started)

    @property
    def time(self) -> float:
        """Seconds since the record began; what a line says if it is written now, unless it has a `time` of its own."""
        return round(self._clock() - self._started, 6)

    def write(self, event: str, **fields: object) -> None:
        """Append one line: the event, the common fields, `time`, then the given fields.

        Raises:
            RunError: the line could not be written whole (disk full, quota).
        """
        values: dict[str, object] = {"time": self.time, **fields}
        if event == "start":
            values["attempt"] = self.attempt
            if self._continues is not None:
                values["continues"] = self._continues
        try:
            body = json.dumps(values, ensure_ascii=False, allow_nan=False, default=_plain)
        except ValueError:  # allow_nan found a number that is not finite: rare, so the fast path does not look for it
            body = json.dumps(_finite(values), ensure_ascii=False, allow_nan=False)
        line = f'{{"event": "{event}", {self._head}, {body[1:]}\n'.encode()
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise RunError(
                f"cannot write to the record {self.path}: {error.strerror}; make room and run again"
            ) from error
        if written != len(line):
            raise RunError(f"the record {self.path} was cut short: no room left on the disk; make room and run again")
        self._lines += 1

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(value: Any) -> object:
    """Turn a numpy scalar or array into what JSON knows; anything else into its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _finite(value: object) -> object:
    """Replace numbers that are not finite by their names, at any depth."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return _finite(_plain(value))
