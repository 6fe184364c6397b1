"""The rounds that wait for replacements: which records say so, and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpcps.inputs import finite

_AFTER = ("start", "closed", "round", "end")
"""Events after which the process does not wait any more."""


class Waits:
    """Which combiners of a run wait for replacements, by the lines of their records."""

    def __init__(self) -> None:
        """Begin without lines."""
        self._lines: dict[str, Mapping[str, Any]] = {}
        self._ended = -1

    def read(self, process: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take the next lines of the record of a process, such as `validator-1`."""
        for line in lines:
            event = line.get("event")
            if event == "paused":
                self._lines[process] = line
            elif event in _AFTER:
                self._lines.pop(process, None)
            if process == "server-0" and event in ("start", "round"):  # a new attempt begins at an earlier round
                self._ended = int(finite(line.get("round"))) if event == "round" else -1

    @property
    def lines(self) -> dict[str, Mapping[str, Any]]:
        """The lines `paused` of the combiners that wait, by process; one that was lost since waits no more."""
        return {name: line for name, line in self._lines.items() if finite(line.get("round")) > self._ended}


def described(wait: Mapping[str, Any]) -> str:
    """Return who waits for what, from a line `paused`."""
    what = "validator" if "validators" in wait else "worker"
    count, who = wait.get(f"{what}s"), f"{wait.get('role')}-{wait.get('index')}"
    return f"{who} waits for replacements: it has {count} {what}{'s' * (count != 1)}, and needs {wait.get('needed')}"
