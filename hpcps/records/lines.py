"""Reads JSON lines from a file that a process is still writing, or of a process that was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError
from hpcps.inputs import parse_json

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


def decode(line: bytes) -> dict[str, Any] | None:
    """Read one line; None if it is not a JSON object."""
    try:
        value = parse_json("", line)
    except InputError:
        return None
    if not isinstance(value, dict):
        return None
    for key, item in value.items():
        if isinstance(item, str) and item in _NOT_FINITE:
            value[key] = _NOT_FINITE[item]
    return value


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
    return decode_all(path.read_bytes())


def whole_lines_end(path: Path) -> int:
    """Return the offset after the file's last newline: the start of a truncated line, or the end of the file."""
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
