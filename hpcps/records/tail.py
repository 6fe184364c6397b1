"""What is appended to a record that another process writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcps.records.lines import decode_all


class Tail:
    """The lines appended to one record file since the last look.

    Attributes:
        path: the file.
        changed: when it was written last, seconds since 1970; 0 if it is not there.
    """

    def __init__(self, path: Path, first: int) -> None:
        """Start at most `first` bytes before the file's end."""
        self.path = path
        self.changed = 0.0
        self._first = first
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines that are new; none if the file cannot be read."""
        try:
            now = self.path.stat()
            self.changed = now.st_mtime
            if self._offset is None or now.st_size < self._offset:  # shorter: a new attempt cut off a torn line
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
