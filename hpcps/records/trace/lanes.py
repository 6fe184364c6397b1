"""Reads the traces of the processes of a run, and puts them on one clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_json
from hpcps.protocol.messages import ROLES, Kind, Peer
from hpcps.records.trace.spans import ACTIVITIES, BACKGROUND, COMPARED, FORMAT, SUFFIX, UNPACKED

# A shorter time of a role's own code, or of waiting, is part of the next span; seconds.
_SHORT = 20e-6
# Number of spans that are decoded at a time.
_CHUNK = 4096
_LONGEST_HEAD = 65536
_HEAD = {"session": int, "role": str, "index": int, "host": str, "clock": str, "began": float}

_NAMES = ("", *ACTIVITIES)
_KINDS = {0: "MALFORMED", **{kind.value: kind.name for kind in Kind}}


@dataclass(frozen=True)
class Span:
    """An activity of a process, without interruption.

    Attributes:
        activity: `train`, `send`, `wait`, …
        start: its start, in seconds since the start of the first process of the run.
        seconds: its duration.
        round: the round of the process (asynchronous: its cycle).
        other: for `send` and `receive`: the other process.
        kind: for `send` and `receive`: the kind of the message.
        bytes: for `send` and `receive`: the size of the payload.
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
        """The end, in seconds like `start`."""
        return self.start + self.seconds


class _Noted(NamedTuple):
    """A span as the file has it; the message of `send` and `receive` is `other`, `kind` and `bytes` of `Span`."""

    activity: str
    background: bool
    before: str
    round: int
    rested: float
    start: float
    stop: float
    message: tuple[str, str, int] | tuple[()]


class _Piece(NamedTuple):
    """A part of the time of a process, given by its end.

    A loose piece (own code, or waiting) is joined with an equal next one, and with the next span if it is short.
    """

    loose: bool
    activity: str
    round: int
    stop: float
    message: tuple[str, str, int] | tuple[()] = ()


@dataclass(frozen=True)
class Lane:
    """The trace of one process.

    Attributes:
        peer: the process.
        host: its host.
        path: the file.
        clock: `monotonic` or `virtual`.
        origin: the start of the trace, in seconds on the clock of the process.
        began: the start of the trace, in seconds on the clock of rank 0.
        zero: the time on the clock of rank 0 at which the trace of the run starts.
        error: largest error of the offset between the clocks, in seconds.
        drift: change of that offset, in seconds per second.
    """

    peer: Peer
    host: str
    path: Path
    clock: str
    origin: float
    began: float
    zero: float
    error: float
    drift: float

    def spans(self) -> Iterator[Span]:
        """Read the spans; each begins where the one before ends.

        The time between two recorded spans is `handle`, the role's own code. Adjacent times of own code or of waiting
        form one span. If that span is short, it is part of the next one.
        """
        since, loose = self.origin, None
        for piece in chain(self._pieces(), (None,)):
            if loose and (piece is None or piece[:3] != loose[:3]) and loose.stop - since > _SHORT:
                yield self._span(loose.activity, since, loose.stop, loose.round)
                since = loose.stop
            loose = piece if piece and piece.loose else None
            if piece and not piece.loose:
                yield self._span(piece.activity, since, piece.stop, piece.round, *piece.message)
                since = piece.stop

    def background(self) -> Iterator[Span]:
        """Read the spans of background activities."""
        for noted in _read(self.path):
            if noted.background:
                yield self._span(noted.activity, noted.start, noted.stop, noted.round)

    def _pieces(self) -> Iterator[_Piece]:
        """Read the recorded spans of the main thread, and add the times between them."""
        until = self.origin
        for noted in _read(self.path):
            if noted.background:
                continue
            worked = noted.rested if noted.before else noted.start
            if worked > until:
                yield _Piece(True, "handle", noted.round, worked)
            if noted.before:
                yield _Piece(True, noted.before, noted.round, noted.start)
            yield _Piece(noted.activity == "handle", noted.activity, noted.round, noted.stop, noted.message)
            until = noted.stop

    def _span(self, activity: str, start: float, stop: float, round: int, *detail: Any) -> Span:
        """Convert a span to the clock of rank 0."""
        rate = 1.0 + self.drift
        begin = self.began - self.zero + (start - self.origin) * rate
        return Span(activity, begin, (stop - start) * rate, round, *detail)


def files_of(run_directory: Path) -> list[Path]:
    """Return the trace files of a run, one for each process."""
    return list((run_directory / "trace").glob(f"*-*{SUFFIX}"))


def read_lanes(run_directory: Path) -> list[Lane]:
    """Return the lanes of the last traced attempt: servers, then validators, then workers.

    Raises:
        RunError: the run has no trace.
    """
    found = [(head, path) for path in files_of(run_directory) if (head := _head(path))]
    if not found:
        raise RunError(
            f"{run_directory} has no trace: run it with `hpcps run FILE --trace` (and --no-resume if it is done)"
        )
    session = max(head["session"] for head, _ in found)
    lanes = [_lane(head, path) for head, path in found if head["session"] == session]
    zero = min(lane.began for lane in lanes)
    lanes.sort(key=lambda lane: (ROLES.index(lane.peer.role), lane.peer.index))
    return [replace(lane, zero=zero) for lane in lanes]


def _lane(head: dict[str, Any], path: Path) -> Lane:
    origin, offset, error, drift = head["began"], 0.0, 0.0, 0.0
    spans = _spans(path)
    compared = spans[spans["activity"] == COMPARED]
    if compared.size:
        at, offsets = compared["start"] - origin, compared["stop"]
        error = float(compared["bytes"].max()) * 1e-9
        if at[-1] > at[0]:
            drift = float((offsets[-1] - offsets[0]) / (at[-1] - at[0]))
        offset = float(offsets[0] - drift * at[0])
    peer = Peer(head["role"], head["index"])
    return Lane(peer, head["host"], path, head["clock"], origin, origin + offset, 0.0, error, drift)


def _head(path: Path) -> dict[str, Any]:
    """Return the values of the first line; none if it is incomplete or of another version."""
    with path.open("rb") as file:
        try:
            head = parse_json(path, file.readline(_LONGEST_HEAD))
        except InputError:
            return {}
    ours = isinstance(head, dict) and head.get("format") == FORMAT and head.get("role") in ROLES
    return head if ours and all(isinstance(head.get(name), kind) for name, kind in _HEAD.items()) else {}


def _spans(path: Path) -> NDArray[Any]:
    """Return all complete spans of a file."""
    with path.open("rb") as file:
        file.readline()
        return np.fromfile(file, UNPACKED)


def _read(path: Path) -> Iterator[_Noted]:
    """Yield the decoded spans of a file; skip invalid ones, and comparisons of clocks."""
    spans = _spans(path)
    for chunk in range(0, spans.size, _CHUNK):
        rows = spans[chunk : chunk + _CHUNK].tolist()
        for number, kind, role, before, round, rested, start, stop, size, index in rows:
            if not 0 < number & ~BACKGROUND <= len(ACTIVITIES) or before > len(ACTIVITIES) or not start <= stop:
                continue
            if kind not in _KINDS or role >= len(ROLES):
                continue
            name, rest = _NAMES[number & ~BACKGROUND], _NAMES[before]
            message = (f"{ROLES[role]}-{index}", _KINDS[kind], size) if name in ("send", "receive") else ()
            yield _Noted(name, bool(number & BACKGROUND), rest, round, rested, start, stop, message)
