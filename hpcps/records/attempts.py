"""The attempts of a process, read from its record: the order of its events, and its lines, to compare with others."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.records.files import read_lines

TIMES = frozenset(
    ("time", "compute", "evaluate", "combine", "exchange", "wait", "cpu", "polls", "step_seconds", "overrun_steps")
)
"""The fields of lines that hold times, or counts that depend on them; so do those that begin with `cpu_`."""

_NOT_COMPARED = TIMES | {"host", "order"}

_DONE = ("finished", "suspended")


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
    """One attempt of a process: its lines, and how far a replay has come.

    Attributes:
        start: its first line.
        number: its number.
        position: the position of the checkpoint from which the attempt resumed; None if it began the run.
        ended: whether the process finished, or was suspended at a checkpoint: its record has all lines.
        truncated: whether the run finished with this attempt, but the record does not state that the process did.
        after_last: the line after the last of the attempt.
        failure: the error that ended the process; None if none did.
        compared: the number of lines that a replay has written, too.
    """

    def __init__(
        self,
        file: Path,
        start: dict[str, Any],
        number: int,
        position: int | None,
        lines: list[tuple[int, dict[str, Any]]],
        first: int,
        *,
        last: bool,
    ) -> None:
        """Take the lines of an attempt.

        Args:
            file: the record.
            start: its `start` line.
            number: as the attribute.
            position: as the attribute.
            lines: the lines after it, with their numbers in the file, from 1.
            first: the number of the `start` line.
            last: whether the run finished with this attempt.
        """
        self.start = start
        self.number = number
        self.position = position
        self._name = f"{file.parent.name}/{file.name}"
        self._order = deque((name, number) for number, line in lines for name in line.get("order", ()))
        self.after_last = self._line(first + len(lines) + 1)
        final = lines[-1][1] if lines else {}
        reason = final.get("reason") if final.get("event") == "end" else None
        self.truncated = last and reason != "finished"
        self.ended = last or reason in _DONE
        self.failure = final.get("error") if final.get("event") == "end" else None
        # The end of an interrupted process depends on the moment of the interruption.
        ends = ("stopped", "failed")
        others = ("waiting", "callback")  # of the moment, and of a caller who is not there in a replay
        compared = [item for item in lines if item[1]["event"] not in others and item[1].get("reason") not in ends]
        # An evaluation runs in the background of the other lines.
        self._lines = {
            beside: deque(item for item in compared if _is_beside(item[1]) is beside) for beside in (False, True)
        }
        self.compared = 0

    @property
    def expected(self) -> str | None:
        """The next event from outside, by its name in `order`; None after the last one that was recorded."""
        return self._order[0][0] if self._order else None

    def following(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of an event that no replay has written yet."""
        return [line for _, line in self._lines[False] if line["event"] == event]

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
        lines = self._lines[_is_beside(computed)]
        if not lines:
            if self.ended:
                what = f"the replay writes another `{computed['event']}` line after the last"
                raise DifferenceError(self.after_last, what)
            return
        number, recorded = lines.popleft()
        names = [name for name in (*recorded, *computed) if name not in _NOT_COMPARED and not name.startswith("cpu_")]
        for name in names:
            here, there = (repr(line[name]) if name in line else "nothing" for line in (recorded, computed))
            if here != there:
                raise DifferenceError(self._line(number), f"`{name}`: the record has {here}, the replay {there}")
        self.compared += 1

    def _line(self, number: int) -> str:
        return f"{self._name}, line {number}"


def _is_beside(line: Mapping[str, Any]) -> bool:
    return line["event"] == "evaluation" or (line["event"] == "diverged" and "epoch" in line)


def _fault_of_order(order: object, events: Collection[str]) -> str | None:
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        return "`order` is not a list of names"
    unknown = next((name for name in order if name not in events), None)
    return None if unknown is None else f"`order` has `{unknown}`, which is no event of this run"


def attempts_of(file: Path, events: Collection[str], *, finished: bool) -> list[Attempt]:
    """Read the attempts of a process from its record.

    Args:
        file: the record.
        events: the names that `order` may have.
        finished: whether the run is finished, so that the record is not truncated.

    Raises:
        DifferenceError: a line is damaged, and not only truncated at the end of the record of an unfinished run; or
            its `order` is not one of events.
        RunError: the record cannot be read, or does not belong to a process with attempts.
    """
    try:
        read = read_lines(file)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error
    known = {number: line for number, line in zip(read.numbers, read.lines, strict=True) if "event" in line}
    attempts: list[tuple[dict[str, Any], int, int | None, list[tuple[int, dict[str, Any]]], int]] = []
    for number in range(read.count if finished else max(known, default=-1) + 1):
        line = known.get(number)
        if line is None:
            raise DifferenceError(f"{file.parent.name}/{file.name}, line {number + 1}", "it is not a record line")
        if line["event"] == "lost" or "incarnation" in line:
            raise RunError(
                f"the run has lost {line.get('process', file.stem)}, and a replay loses and replaces no processes: "
                "in virtual time, `hpcps run FILE --no-resume` computes the same records again"
            )
        if wrong := _fault_of_order(line.get("order", []), events):
            raise DifferenceError(f"{file.parent.name}/{file.name}, line {number + 1}", wrong)
        if line["event"] == "start":
            # The line before the checkpoint states its position.
            continues = line.get("continues")
            before = known.get(continues - 1, {}) if isinstance(continues, int) else {}
            position = before.get("moment")
            stated = line.get("attempt")
            count = stated if isinstance(stated, int) else len(attempts) + 1
            if attempts and count <= attempts[-1][1]:
                what = f"`attempt`: the record has {count} after {attempts[-1][1]}"
                raise DifferenceError(f"{file.parent.name}/{file.name}, line {number + 1}", what)
            attempts.append((line, count, position if isinstance(position, int) else None, [], number + 1))
        elif not attempts:
            raise DifferenceError(f"{file.parent.name}/{file.name}, line 1", "it is not a `start` line")
        else:
            attempts[-1][3].append((number + 1, line))
    lasts = [False] * (len(attempts) - 1) + [finished]
    return [Attempt(file, *attempt, last=last) for attempt, last in zip(attempts, lasts, strict=False)]
