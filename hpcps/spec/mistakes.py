"""All mistakes of an experiment file, each once and with its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path as FilePath

from hpcps.errors import SpecError
from hpcps.spec.keys import dotted_keys
from hpcps.spec.locate import Path, line_of
from hpcps.spec.overrides import Override
from hpcps.spec.problems import Problem, dotted, quote
from hpcps.spec.sweep import Assignment

Change = Assignment | Override


class Mistakes:
    """Collects the problems of a file's points; a mistake that many points share is one mistake."""

    def __init__(self, file: FilePath, lines: dict[Path, int]) -> None:
        self._file = file
        self._lines = lines
        self._found: dict[str, int] = {}  # message, with its place, by line; insertion order breaks ties
        self._void: set[Path] = set()

    def add(self, problem: Problem, changes: Sequence[Change] = ()) -> None:
        """Note a problem of a point whose base was changed by these values, the last one on top."""
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
        if isinstance(source, Override):
            self._note_down(f"--set {source.text}: {message}", None)
            return
        # Inside a value of the sweep, the file's path goes on where the value stands.
        path = (*source.place, *problem.path[len(source.key) :]) if source else problem.path
        line = line_of(self._lines, path)
        self._note_down(f"{self._file}:{line}: {message}", line)

    def add_override(self, text: str, message: str) -> None:
        """Note that a `--set` cannot be understood."""
        self._note_down(f"--set {text}: {message}", None)

    def stop(self) -> None:
        """Raise a `SpecError` that lists all mistakes in the order of the file, if there are any."""
        if not self._found:
            return
        count = len(self._found)
        lines = sorted(self._found, key=lambda message: self._found[message])
        heading = f"{self._file}: {count} mistake{'s' * (count > 1)}"
        raise SpecError("\n  ".join([heading, *(line.replace("\n", "\n      ") for line in lines)]))

    def _note_down(self, message: str, line: int | None) -> None:
        after_the_file = 1 << 62
        self._found.setdefault(message, after_the_file if line is None else line)

    def _note(self, source: Change) -> str:
        if isinstance(source, Override):
            return f"--set {source.text}"
        return f"{dotted(source.key)} = {quote(source.value)} in line {line_of(self._lines, source.place)}"


def _source(path: Path, changes: Sequence[Change]) -> Change | None:
    """Return what a point has a value from, if not from the base of the file."""
    changes = changes[::-1]
    for change in changes:
        if path[: len(change.key)] == change.key:
            return change
    if any(name == dotted(path) and not key.tables for name, key in dotted_keys()):
        # A key was put into what is no table, and that is the problem.
        return next((change for change in changes if change.key[: len(path)] == path), None)
    return None
