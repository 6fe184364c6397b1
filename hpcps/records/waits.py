"""The rounds that wait for replacements: which record says so, and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_AFTER = ("start", "closed", "round", "end")
"""Events after which the process does not wait any more."""


def wait_in(lines: Iterable[Mapping[str, Any]], before: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
    """Return the line `paused` of a process whose round waits for replacements; None if it does not.

    Args:
        lines: the next lines of its record.
        before: what the lines before them have said.
    """
    for line in lines:
        if line.get("event") == "paused":
            before = line
        elif line.get("event") in _AFTER:
            before = None
    return before


def described(wait: Mapping[str, Any]) -> str:
    """Return who waits for what, from a line `paused`."""
    what = "validators" if "validators" in wait else "workers"
    who = f"{wait.get('role')}-{wait.get('index')}"
    return f"{who} waits for replacements: it has {wait.get(what)} {what}, and needs {wait.get('needed')}"
