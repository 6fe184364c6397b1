"""Records the activities of one process, with little overhead."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hpcps.protocol.messages import ROLES, Peer
from hpcps.protocol.received import Malformed, Received
from hpcps.records.trace.clocks import Offset
from hpcps.roles.events import AwaitBackground, Compute, Effect, InBackground, Now, Save, Seal, Send, Snapshot

FORMAT = 2
"""Version of the file format; files of other versions are not read."""

SUFFIX = ".spans"
"""Suffix of the name of a trace file."""

ACTIVITIES = (
    "wait", "pause", "handle", "receive", "send", "train", "evaluate", "pack", "combine", "apply", "adopt",
    "checkpoint", "save", "craft", "audit",
)  # fmt: skip
"""The activities of a process. Their codes begin at 1, because a disk may contain zeros after a power failure."""

PACKED = struct.Struct("<BBBBidddQQ")
"""The fields: activity; kind of the message (0: malformed); role of the other process; activity of the rest before the
span (0: no rest); round; start of that rest, start and end of the span, in seconds on the clock of the process; bytes
of the message; index of the other process."""

UNPACKED = np.dtype(
    [("activity", "u1"), ("kind", "u1"), ("role", "u1"), ("before", "u1"), ("round", "<i4"),
     ("rested", "<f8"), ("start", "<f8"), ("stop", "<f8"), ("bytes", "<u8"), ("index", "<u8")]
)  # fmt: skip
"""The same fields as a numpy type."""

BACKGROUND = 0x80
"""Flag in the code of an activity: it ran in the background."""

COMPARED = 0xFF
"""Instead of an activity: at `start`, the clock was compared with that of rank 0. `stop` is the offset to add, in
seconds; `bytes` is the error of the offset, in nanoseconds."""


def code(activity: str) -> int:
    """Return the code of an activity in the file."""
    return ACTIVITIES.index(activity) + 1


_pack, _SIZE = PACKED.pack_into, PACKED.size
_ROOM = 512 * _SIZE
_SECONDS = 1.0
# Seconds after the last write from which on spans are written before the next effect begins.
_LATE = 0.1

_NAMED = {AwaitBackground: "wait", Snapshot: "checkpoint", Seal: "checkpoint", Save: "save"}

TIMED_EFFECTS = frozenset({Send, Compute, Now, InBackground, *_NAMED})
"""The effects with a span of their own. All others are part of `handle`."""

_RECEIVE, _SEND, _HANDLE = code("receive"), code("send"), code("handle")
_ROLE = {role: number for number, role in enumerate(ROLES)}


class Tracer:
    """Writes the trace of the last attempt of a run, `trace/<role>-<index>.spans`.

    The first line is a JSON object: `format`, `session` (equal for all processes of an attempt, and larger in a later
    attempt), `run`, `role`, `index`, `host`, `clock` (`monotonic` or `virtual`) and `began`, in seconds on this clock.
    Spans in the format of `trace.spans` follow, in the order of their ends. The reader assigns the time between two
    spans to the role's own code or, if it is short, to the second span.

    Spans are written in batches, before an effect that may take long, and at least once a second while there are new
    ones. If the trace cannot be written, it ends, and the run continues.

    Attributes:
        path: the file.
        clock: returns seconds.
    """

    def __init__(
        self,
        run_directory: Path,
        run_id: str,
        peer: Peer,
        host: str,
        session: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        virtual: bool = False,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Create the file and write its first line.

        Args:
            run_directory: the run's folder; `trace/` is created in it.
            run_id: the run.
            peer: the process.
            host: its host.
            session: identifies the attempt.
            clock: returns seconds.
            virtual: whether it is the clock of a simulation.
            names: other names for tasks, such as `apply` for a server's `combine`.
        """
        self.path = Path(run_directory) / "trace" / f"{peer}{SUFFIX}"
        self.clock = clock
        self._codes = {activity: code(activity) for activity in ACTIVITIES}
        self._codes |= {task: code(name) for task, name in (names or {}).items()}
        self._spans = bytearray(_ROOM)
        self._end = 0
        self._written = self._rested = began = clock()
        # Code of the activity of the rest before the next span; 0 without a rest.
        self._before = 0
        self._file = -1
        head = {
            "format": FORMAT,
            "session": session,
            "run": run_id,
            "role": peer.role,
            "index": peer.index,
            "host": host,
            "clock": "virtual" if virtual else "monotonic",
            "began": began,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._give_up(error)
        self._write(json.dumps(head).encode() + b"\n")

    def rest(self, activity: str) -> None:
        """Begin a rest: the process has nothing to do (`wait`, `pause`), or training goes on (`train`)."""
        self._before, self._rested = self._codes[activity], self.clock()

    def took(self, event: object, round: int, start: float) -> None:
        """Record that the process took an event; its rest, if any, ended at `start`, when it looked for events."""
        if isinstance(event, Received):
            message, other = event.message, event.source
            self._add(_RECEIVE, round, start, message.code, _ROLE[other.role], message.payload_bytes, other.index)
        elif isinstance(event, Malformed):
            self._add(_RECEIVE, round, start, 0, _ROLE[event.source.role], 0, event.source.index)
        elif self._before:
            self._add(_HANDLE, round, start)

    def begin(self, effect: Effect) -> float:
        """Return the time at which an effect of `TIMED_EFFECTS` begins; before a long one, write the recorded spans."""
        now = self.clock()
        if now - self._written > _LATE and not isinstance(effect, Send):
            self._flush(now)
        return now

    def carried_out(self, effect: Effect, round: int, start: float) -> None:
        """Record an effect that took from `start` until now."""
        if isinstance(effect, Send):
            message, other = effect.message, effect.to
            self._add(_SEND, round, start, message.code, _ROLE[other.role], message.payload_bytes, other.index)
        elif isinstance(effect, (Compute, Now, InBackground)):
            self._add(self._codes[effect.task], round, start)
        else:
            self._add(self._codes[_NAMED[type(effect)]], round, start)

    def write_late(self) -> None:
        """Write the recorded spans if the last write was more than a second ago."""
        now = self.clock()
        if now - self._written > _SECONDS:
            self._flush(now)

    def background(self, task: str, start: float, stop: float, round: int) -> None:
        """Record a background task of a round, from `start` to `stop` in seconds on the clock."""
        self._write(PACKED.pack(self._codes[task] | BACKGROUND, 0, 0, 0, round, start, start, stop, 0, 0))

    def compare(self, offset: Offset) -> None:
        """Record a comparison of the clock with that of rank 0."""
        now, error = self.clock(), math.ceil(offset.error * 1e9)
        self._write(PACKED.pack(COMPARED, 0, 0, 0, 0, now, now, offset.seconds, error, 0))

    def close(self) -> None:
        """Write the remaining spans and close the file; a second call does nothing."""
        self._flush(self.clock())
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(
        self, activity: int, round: int, start: float, kind: int = 0, role: int = 0, size: int = 0, index: int = 0
    ) -> None:
        """Record a span that ends now, and the rest before it."""
        now = self.clock()
        _pack(self._spans, self._end, activity, kind, role, self._before, round, self._rested, start, now, size, index)
        self._before = 0
        self._end += _SIZE
        if self._end == _ROOM or now - self._written > _SECONDS:
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Write the recorded spans."""
        self._written = now
        if self._end:
            self._write(memoryview(self._spans)[: self._end])
            self._end = 0

    def _write(self, noted: bytes | memoryview) -> None:
        if self._file < 0:
            return
        try:
            if os.write(self._file, noted) == len(noted):
                return
            raise OSError(0, "the disk is full")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Close the file; the run continues without a trace."""
        print(f"hpcps: the trace {self.path} ends here: {error.strerror}", file=sys.stderr, flush=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def names_of(peer: Peer, validators: int) -> dict[str, str]:
    """Return the names of tasks in a trace that differ from those of the role.

    With validators, the validators combine, and the `combine` of a server adds their result to the model: `apply`.
    """
    return {"combine": "apply"} if peer.role == "server" and validators else {}
