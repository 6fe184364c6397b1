"""Reading JSON lines that another process may still be writing, or was killed while writing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


@dataclass(frozen=True)
class Lines:
    """What a record file holds.

    Attributes:
        lines: its lines, in order, whole ones only.
        damaged: how many lines are torn or not a JSON object.
        numbers: the place of each of `lines` in the file, from 0; damaged lines count.
    """

    lines: list[dict[str, Any]]
    damaged: int
    numbers: list[int]

    @property
    def count(self) -> int:
        """How many lines there are, damaged ones included."""
        return len(self.lines) + self.damaged


def decode(line: bytes) -> dict[str, Any] | None:
    """Read one line; None if it is not a JSON object."""
    try:
        value = json.loads(line)
    except ValueError:  # also what is not UTF-8
        return None
    if not isinstance(value, dict):
        return None
    for key, item in value.items():
        if isinstance(item, str) and item in _NOT_FINITE:
            value[key] = _NOT_FINITE[item]
    return value


def decode_all(text: bytes) -> Lines:
    """Read the lines of a text; a last one without its newline is torn."""
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
    return decode_all(path.read_bytes())


def whole_lines_end(path: Path) -> int:
    """Return the offset after the file's last newline: where a torn line begins, or the file's end."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0
