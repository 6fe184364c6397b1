"""What the processes of a run noted, read back and put on one clock."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.messages import ROLES, Peer
from hpcps.trace.tracer import FORMAT


@dataclass(frozen=True)
class Span:
    """What a process did without a break.

    Attributes:
        activity: `train`, `send`, `wait`, …
        start: when, in seconds since the first process of the run began.
        seconds: how long.
        round: its round (asynchronous: its cycle) then.
        other: of `send` and `receive`: the other process.
        kind: likewise, the kind of the message.
        bytes: likewise, the size of its payload.
    """

    activity: str
    start: float
    seconds: float
    round: int
    other: str = ""
    kind: str = ""
    bytes: int = 0

    @property
    def stop(self) -> float:
        """When it ended."""
        return self.start + self.seconds


@dataclass(frozen=True)
class Lane:
    """The trace of one process.

    Attributes:
        peer: the process.
        host: where it ran.
        path: the file.
        clock: `monotonic` or `virtual`.
        began: when it began, in seconds on the first process's clock.
        zero: what counts as 0 on that clock.
        error: how far off its clock may be, in seconds.
        drift: how many seconds per second its clock has to be corrected, further on.
    """

    peer: Peer
    host: str
    path: Path
    clock: str
    began: float
    zero: float
    error: float
    drift: float

    def spans(self) -> Iterator[Span]:
        """Read the spans, one after the other; a torn or damaged line is passed over."""
        begin, rate = self.began - self.zero, 1.0 + self.drift
        with self.path.open("rb") as file:
            for line in file:
                if not line.startswith(b"["):
                    continue
                try:
                    activity, start, length, round, *detail = json.loads(line)
                    yield Span(activity, begin + start * 1e-6 * rate, length * 1e-6 * rate, round, *detail)
                except (ValueError, TypeError):
                    continue

    def beside(self) -> Iterator[Span]:
        """Read what went on beside those spans, likewise."""
        begin, rate = self.began - self.zero, 1.0 + self.drift
        with self.path.open("rb") as file:
            for line in file:
                if line.startswith(b'{"beside"') and (table := _table(line)):
                    start, length = table["start"] * 1e-6 * rate, table["length"] * 1e-6 * rate
                    yield Span(table["beside"], begin + start, length, table["round"])


def read_lanes(run_directory: Path) -> list[Lane]:
    """Return the lanes of the attempt that was traced last: servers, then validators, then workers.

    Raises:
        RunError: the run has no trace.
    """
    found = [(head, path) for path in (run_directory / "trace").glob("*-*.jsonl") if (head := _head(path))]
    if not found:
        raise RunError(
            f"{run_directory} has no trace: play the run with `hpcps run FILE --trace` (with --no-resume if it is done)"
        )
    session = max(head["session"] for head, _ in found)
    lanes = [_lane(head, path) for head, path in found if head["session"] == session]
    zero = min(lane.began for lane in lanes)
    lanes.sort(key=lambda lane: (ROLES.index(lane.peer.role), lane.peer.index))
    return [
        Lane(lane.peer, lane.host, lane.path, lane.clock, lane.began, zero, lane.error, lane.drift) for lane in lanes
    ]


def _lane(head: dict[str, Any], path: Path) -> Lane:
    comparisons = _comparisons(path)
    offset = error = drift = 0.0
    if comparisons:
        first, last = comparisons[0], comparisons[-1]
        error = max(each["error"] for each in comparisons)
        seconds = (last["at"] - first["at"]) * 1e-6
        if seconds > 0:
            drift = (last["offset"] - first["offset"]) / seconds
        offset = first["offset"] - drift * first["at"] * 1e-6
    peer = Peer(head["role"], head["index"])
    return Lane(peer, head["host"], path, head["clock"], head["began"] + offset, 0.0, error, drift)


def _head(path: Path) -> dict[str, Any]:
    """Return the first line; empty if it is not whole, or of another version."""
    with path.open("rb") as file:
        head = _table(file.readline())
    return head if head.get("format") == FORMAT else {}


def _comparisons(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        next(file, None)
        return [table for line in file if line.startswith(b"{") and "at" in (table := _table(line))]


def _table(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
