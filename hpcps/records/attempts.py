"""The attempts of a process, read from its record: the order of its events, and its lines, to compare with others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.records.files import LEFT, read_lines

TIMES = frozenset(
    (
        *("time", "compute", "evaluate", "combine", "exchange", "wait", "cpu", "polls", "step_seconds"),
        *("overrun_steps", "ago"),
    )
)
"""The fields of lines that hold times, or counts that depend on them; so do those that begin with `cpu_`."""

_NOT_COMPARED = TIMES | {"host", "order", "cause"}
"""The cause of a loss is what a process was told, and nothing depends on it."""

_DONE = ("finished", "suspended")

STANDBYS = ("took_over", "standby_lost", "standby_began")
"""The events of a server's record that say which of two processes goes on."""


class DifferenceError(RunError):
    """A replay differs from the run.

    Attributes:
        where: the file, and the line if it is one of a record.
        what: the difference.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


class Attempt:
    """One attempt of a process, or of a replacement of it: its lines, and how far a replay has come.

    Attributes:
        start: its first line.
        number: its number.
        incarnation: the number of the replacement; 0 if it is none.
        position: the position of the checkpoint from which the attempt resumed; None if it began the run.
        ended: whether the process finished, or was suspended at a checkpoint: its record has all lines.
        lost: whether the run went on without the process.
        truncated: whether the run finished with this attempt, but the record does not state that the process did.
        starts_at: its first line, and its file.
        after_last: the line after the last of the attempt.
        failure: the error that ended the process; None if none did.
        compared: the number of lines that a replay has written, too.
        suspended_in: the round that follows the checkpoint at which it was suspended; None if it was not.
    """

    def __init__(
        self,
        file: Path,
        start: dict[str, Any],
        number: int,
        incarnation: int,
        position: int | None,
        lines: list[tuple[int, dict[str, Any]]],
        first: int,
        *,
        last: bool,
        lost: bool,
        ordered: bool = True,
    ) -> None:
        """Take the lines of an attempt.

        Args:
            file: the record.
            start: its `start` line.
            number: as the attribute.
            incarnation: as the attribute.
            position: as the attribute.
            lines: the lines after it, with their numbers in the file, from 1.
            first: the number of the `start` line.
            last: whether the process finished with this attempt, as the run did.
            lost: as the attribute.
            ordered: whether the order of events from outside decides on the lines, and the record states it. Else the
                lines of different events may come in another order, and the counts of messages in them may differ.
        """
        self.start = start
        self.number = number
        self.incarnation = incarnation
        self.lost = lost
        self.position = position
        self._name = f"{file.parent.name}/{file.name}"
        self._order = deque((name, number) for number, line in lines for name in line.get("order", ()))
        self.starts_at = self._line(first)
        self.after_last = self._line(first + len(lines) + 1)
        final = lines[-1][1] if lines else {}
        reason = final.get("reason") if final.get("event") == "end" else None
        self.truncated = last and reason != "finished"
        self.ended = last or reason in _DONE
        self.failure = final.get("error") if final.get("event") == "end" else None
        # The end of an interrupted process depends on the moment of the interruption.
        ends = ("stopped", "failed")
        # Of the moment, of a caller who is not there in a replay, and of the process.
        others = ("waiting", "callback", *STANDBYS)
        compared = [item for item in lines if item[1]["event"] not in others and item[1].get("reason") not in ends]
        self._ordered = ordered
        self._lines: dict[object, deque[tuple[int, dict[str, Any]]]] = {}
        for item in compared:
            self._lines.setdefault(self._kind(item[1]), deque()).append(item)
        round = final.get("round")
        self.suspended_in = round if reason == "suspended" and isinstance(round, int) else None
        self.compared = 0

    @property
    def expected(self) -> str | None:
        """The next event from outside, by its name in `order`; None after the last one that was recorded."""
        return self._order[0][0] if self._order else None

    @property
    def order(self) -> list[str]:
        """The names of the expected event and of those after it."""
        return [name for name, _ in self._order]

    def following(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event that no replay has written yet."""
        return [line for lines in self._lines.values() for _, line in lines if line["event"] == event]

    def advance(self) -> None:
        """Go on to the event after the expected one."""
        self._order.popleft()

    @property
    def left(self) -> int:
        """The number of lines that no replay has written yet."""
        return sum(map(len, self._lines.values()))

    @property
    def stopped_at(self) -> str:
        """The line of the next event, else the next line: where a replay does not proceed."""
        numbers = [self._order[0][1]] if self._order else [lines[0][0] for lines in self._lines.values() if lines]
        return self._line(min(numbers)) if numbers else self.after_last

    def compare(self, computed: Mapping[str, Any]) -> None:
        """Compare the next recorded line with one that a replay writes.

        Raises:
            DifferenceError: they differ in other fields than times; or the record of the ended attempt has no more.
        """
        if computed["event"] == "start":
            return
        lines = self._lines.get(self._kind(computed))
        if not lines:
            if self.ended:
                what = f"the replay writes another `{computed['event']}` line after the last"
                raise DifferenceError(self.after_last, what)
            return
        number, recorded = lines.popleft()
        names = [name for name in (*recorded, *computed) if self._is_compared(name)]
        for name in names:
            here, there = (repr(line[name]) if name in line else "nothing" for line in (recorded, computed))
            if here != there:
                raise DifferenceError(self._line(number), f"`{name}`: the record has {here}, the replay {there}")
        self.compared += 1

    def _kind(self, line: Mapping[str, Any]) -> object:
        """Return what has an order of its own: an evaluation runs in the background of the other lines."""
        return _is_beside(line) if self._ordered else (_is_beside(line), line["event"])

    def _is_compared(self, name: str) -> bool:
        counts = not self._ordered and ("bytes_" in name or name.startswith("messages_"))
        return name not in _NOT_COMPARED and not name.startswith("cpu_") and not counts

    def _line(self, number: int) -> str:
        return f"{self._name}, line {number}"


def _is_beside(line: Mapping[str, Any]) -> bool:
    return line["event"] == "evaluation" or (line["event"] == "diverged" and "epoch" in line)


def _fault_of_order(order: object, is_event: Callable[[str], bool]) -> str | None:
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        return "`order` is not a list of names"
    unknown = next((name for name in order if not is_event(name)), None)
    return None if unknown is None else f"`order` has `{unknown}`, which is no event of this run"


def _position(lines: Mapping[int, dict[str, Any]], continues: int, *, ordered: bool) -> int | None:
    """Return the position of the checkpoint before which a record had so many lines.

    The last of them states it, if the record states the order of events; else it ends the round before.
    """
    if ordered:
        position = lines.get(continues - 1, {}).get("moment")
    else:
        before = (lines.get(number, {}) for number in range(continues - 1, -1, -1))
        ended = next((line.get("round") for line in before if line.get("event") == "round"), None)
        position = ended + 1 if isinstance(ended, int) else None
    return position if isinstance(position, int) else None


def attempts_of(
    file: Path, is_event: Callable[[str], bool], *, finished: bool, replaceable: bool, ordered: bool = True
) -> list[Attempt]:
    """Read the attempts of a process from its record, those of its replacements too.

    Args:
        file: the record.
        is_event: returns whether `order` may have a name.
        finished: whether the process finished, as the run did, so that the record is not truncated.
        replaceable: whether the run may lose the process, and go on with a replacement.
        ordered: see `Attempt`.

    Raises:
        DifferenceError: a line is damaged, and not only truncated at the end of the record of an unfinished run; or
            its `order` has a name that is no event.
        RunError: the record cannot be read, or does not belong to a process with attempts.
    """
    try:
        read = read_lines(file)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error
    known = {number: line for number, line in zip(read.numbers, read.lines, strict=True) if "event" in line}
    attempts: list[tuple[dict[str, Any], int, int, int | None, list[tuple[int, dict[str, Any]]], int]] = []
    for number in range(read.count if finished else max(known, default=-1) + 1):
        line, where = known.get(number), f"{file.parent.name}/{file.name}, line {number + 1}"
        if line is None:
            raise DifferenceError(where, "it is not a record line")
        if wrong := _fault_of_order(line.get("order", []), is_event):
            raise DifferenceError(where, wrong)
        if line["event"] == "start":
            stated, incarnation = line.get("attempt"), line.get("incarnation", 0)
            count = stated if isinstance(stated, int) else len(attempts) + 1
            if not isinstance(incarnation, int) or incarnation < 0 or (incarnation and not replaceable):
                raise DifferenceError(where, f"`incarnation`: the record has {incarnation!r}, which no process can be")
            if attempts and (count, incarnation) <= (before := attempts[-1][1:3]):
                name = "incarnation" if incarnation and count == before[0] else "attempt"
                there, last = (incarnation, before[1]) if name == "incarnation" else (count, before[0])
                raise DifferenceError(where, f"`{name}`: the record has {there} after {last}")
            continues = None if incarnation or line.get("without_part") else line.get("continues")
            position = _position(known, continues, ordered=ordered) if isinstance(continues, int) else None
            attempts.append((line, count, incarnation, position, [], number + 1))
        elif line["event"] == LEFT:
            pass  # written between two attempts
        elif not attempts:
            raise DifferenceError(f"{file.parent.name}/{file.name}, line 1", "it is not a `start` line")
        else:
            attempts[-1][4].append((number + 1, line))
    # A process whose replacement has begun is lost.
    numbers = [attempt[1] for attempt in attempts]
    lost = [number == after for number, after in pairwise([*numbers, 0])]
    lasts = [False] * (len(attempts) - 1) + [finished]
    ends = zip(attempts, lasts, lost, strict=False)
    return [Attempt(file, *each, last=last, lost=gone, ordered=ordered) for each, last, gone in ends]
