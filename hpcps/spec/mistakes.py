"""All mistakes of an experiment file, each once and with its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path as FilePath

from hpcps.errors import SpecError
from hpcps.spec.keys import dotted_keys
from hpcps.spec.locate import Path, line_of
from hpcps.spec.overrides import Override
from hpcps.spec.problems import Problem, dotted, quote
from hpcps.spec.sweep import Assignment
from hpcps.spec.tree import Tree, get

Change = Assignment | Override
MOST_SHOWN = 200
"""The most mistakes that a message lists."""


class Mistakes:
    """Collects the problems of a file's points; lists a mistake once if several points share it."""

    def __init__(self, file: FilePath, lines: dict[Path, int]) -> None:
        self._file = file
        self._lines = lines
        self._found: dict[str, int] = {}  # the line of each message; insertion order breaks ties
        self._void: set[Path] = set()

    def add(self, problem: Problem, changes: Sequence[Change] = (), base: Tree | None = None) -> None:
        """Add a problem of a point.

        Args:
            problem: the problem.
            changes: the values that override the base, later ones first in effect.
            base: the tables that they override, for a hint if a key is missing because a change replaces its table.
        """
        self._void.update(problem.stands_for)
        if problem.missing and any(problem.path[: len(key)] == key for key in self._void):
            return
        source = _source(problem.path, changes)
        notes = []
        for path in problem.involves:
            other = _source(path, changes)
            if other is not None and other is not source and (note := self._note(other)) not in notes:
                notes.append(note)
        with_these = f" (with {', '.join(notes)})" if notes else ""
        message = f"{dotted(problem.path)}: {problem.message}{with_these}"
        if problem.missing and source is not None and get(base or {}, [str(part) for part in problem.path]) is not None:
            own = dotted(source.key)
            keys = source.value if isinstance(source.value, Mapping) else ()
            message += f"; the new value of {own} replaces the whole table of the file: repeat the key in it, or set "
            message += f"single keys, such as {quote(f'{own}.{next(iter(keys), problem.path[-1])}')}"
        if isinstance(source, Override):
            self._record(f"--set {source.text}: {message}", None)
            return
        # The path of a key inside a swept value starts with the path of that value.
        path = (*source.place, *problem.path[len(source.key) :]) if source else problem.path
        line = line_of(self._lines, path)
        self._record(f"{self._file}:{line}: {message}", line)

    def add_override(self, text: str, message: str) -> None:
        """Add a mistake in a `--set`."""
        self._record(f"--set {text}: {message}", None)

    def messages(self) -> tuple[str, ...]:
        """Return the messages in the order of the file."""
        return tuple(sorted(self._found, key=lambda message: self._found[message]))

    def stop(self) -> None:
        """Raise a `SpecError` that lists all mistakes in the order of the file, if there are any."""
        lines = self.messages()
        count = len(lines)
        if not lines:
            return
        heading = f"{self._file}: {count:,} mistake{'s' * (count > 1)}"
        shown = [line.replace("\n", "\n      ") for line in lines[:MOST_SHOWN]]
        more = [f"... and {count - MOST_SHOWN:,} more: correct these first"] if count > MOST_SHOWN else []
        raise SpecError("\n  ".join([heading, *shown, *more]))

    def _record(self, message: str, line: int | None) -> None:
        after_the_file = 1 << 62
        self._found.setdefault(message, after_the_file if line is None else line)

    def _note(self, source: Change) -> str:
        if isinstance(source, Override):
            return f"--set {source.text}"
        return f"{dotted(source.key)} = {quote(source.value)} in line {line_of(self._lines, source.place)}"


@cache
def _values() -> frozenset[str]:
    return frozenset(name for name, key in dotted_keys() if not key.tables)


def _source(path: Path, changes: Sequence[Change]) -> Change | None:
    """Return the change that a point's value comes from; None if it comes from the base of the file."""
    changes = changes[::-1]
    for change in changes:
        if path[: len(change.key)] == change.key:
            return change
    if dotted(path) in _values():
        # The problem is a change that sets a key inside a value that is not a table.
        return next((change for change in changes if change.key[: len(path)] == path), None)
    return None
