"""Reads the lines that another process appends to a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcps.records.lines import decode_all


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
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read(now.st_size - self._offset)
        except OSError:
            return []
        self._offset += len(text)
        whole, newline, self._rest = (self._rest + text).rpartition(b"\n")
        return decode_all(whole + newline).lines
