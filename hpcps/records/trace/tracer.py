"""Records the activities of one process, at a small cost."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from hpcps.protocol.messages import ROLES, Malformed, Peer, Received
from hpcps.records.trace.clocks import Offset
from hpcps.records.trace.spans import ACTIVITIES, BESIDE, COMPARED, FORMAT, PACKED, SUFFIX, code
from hpcps.roles.events import Compute, Effect, InBackground, Now, Save, Seal, Send, Settle, Snapshot

_pack, _SIZE = PACKED.pack_into, PACKED.size
_ROOM = 512 * _SIZE
_SECONDS = 1.0
# Seconds since the last writing from which on nothing is begun with something left to write.
_LATE = 0.1

_NAMED = {Settle: "wait", Snapshot: "checkpoint", Seal: "checkpoint", Save: "save"}

TOLD_APART = frozenset({Send, Compute, Now, InBackground, *_NAMED})
"""The effects that have a span of their own. All others are part of the turn."""

_RECEIVE, _SEND, _HANDLE = code("receive"), code("send"), code("handle")
_ROLE = {role: number for number, role in enumerate(ROLES)}


class Tracer:
    """Writes `trace/<role>-<index>.spans` in the run's folder: the last attempt's.

    The first line is a table: `format`, `session` (the same for all processes of an attempt, and larger in a later
    one), `run`, `role`, `index`, `host`, `clock` (`monotonic` or `virtual`) and `began`, in the clock's seconds. The
    rest is spans as `trace.spans` has them, by their ends. The time between two of them went into the role's own
    code, or, if it is short, into what led to the second one; the reader decides.

    They are written many at a time, before anything that may last is begun and at least every second in which something
    happens. A trace that cannot be written ends, and the run goes on.

    Attributes:
        path: the file.
        clock: seconds.
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
        """Begin.

        Args:
            run_directory: the run's folder; `trace/` is made in it.
            run_id: the run.
            peer: the process.
            host: the machine it is on.
            session: what tells this attempt from those before it.
            clock: seconds.
            virtual: whether it is a simulation's.
            names: other names for tasks, such as `apply` for a server's `combine`.
        """
        self.path = Path(run_directory) / "trace" / f"{peer}{SUFFIX}"
        self.clock = clock
        self._codes = {activity: code(activity) for activity in ACTIVITIES}
        self._codes |= {task: code(name) for task, name in (names or {}).items()}
        self._spans = bytearray(_ROOM)
        self._end = 0
        self._written = self._rested = began = clock()
        # What the rest is that the next span follows; 0 if there is none.
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
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._give_up(error)
        self._write(json.dumps(head).encode() + b"\n")

    def rest(self, activity: str) -> None:
        """From now on there is nothing to do, or others have their turn: it waits, goes on with `train`, a `pause`."""
        self._before, self._rested = self._codes[activity], self.clock()

    def took(self, event: object, round: int, start: float) -> None:
        """Its rest, if it had one, ended as it began to look; now it has taken what was there."""
        if isinstance(event, Received):
            message, other = event.message, event.source
            self._add(_RECEIVE, round, start, message.kind, _ROLE[other.role], message.payload_bytes, other.index)
        elif isinstance(event, Malformed):
            self._add(_RECEIVE, round, start, 0, _ROLE[event.source.role], 0, event.source.index)
        elif self._before:
            self._add(_HANDLE, round, start)

    def begin(self, effect: Effect) -> float:
        """An effect, one that is `TOLD_APART`, begins; return the time. It may last as long as it likes."""
        now = self.clock()
        if now - self._written > _LATE and not isinstance(effect, Send):
            self._flush(now)
        return now

    def carried_out(self, effect: Effect, round: int, start: float) -> None:
        """The effect was carried out, from a beginning until now."""
        if isinstance(effect, Send):
            message, other = effect.message, effect.to
            self._add(_SEND, round, start, message.kind, _ROLE[other.role], message.payload_bytes, other.index)
        elif isinstance(effect, (Compute, Now, InBackground)):
            self._add(self._codes[effect.task], round, start)
        else:
            self._add(self._codes[_NAMED[type(effect)]], round, start)

    def write_late(self) -> None:
        """Write what was noted a while ago."""
        now = self.clock()
        if now - self._written > _SECONDS:
            self._flush(now)

    def beside(self, task: str, start: float, stop: float, round: int) -> None:
        """Something that was begun in a round ran beside all this, from and to these seconds of the clock."""
        self._write(PACKED.pack(self._codes[task] | BESIDE, 0, 0, 0, round, start, start, stop, 0, 0))

    def compare(self, offset: Offset) -> None:
        """Its clock was compared with that of the first process."""
        now, error = self.clock(), math.ceil(offset.error * 1e9)
        self._write(PACKED.pack(COMPARED, 0, 0, 0, 0, now, now, offset.seconds, error, 0))

    def close(self) -> None:
        """Write what is left; a second call does nothing."""
        self._flush(self.clock())
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(
        self, activity: int, round: int, start: float, kind: int = 0, role: int = 0, size: int = 0, index: int = 0
    ) -> None:
        """Note a span that ends now, and the rest that came before it."""
        now = self.clock()
        _pack(self._spans, self._end, activity, kind, role, self._before, round, self._rested, start, now, size, index)
        self._before = 0
        self._end += _SIZE
        if self._end == _ROOM or now - self._written > _SECONDS:
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Write what was noted."""
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
            raise OSError(0, "no room left on the disk")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Go on without a trace."""
        print(f"hpcps: the trace {self.path} ends here: {error.strerror}", file=sys.stderr, flush=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def names_of(peer: Peer, validators: int) -> dict[str, str]:
    """Return what a role's tasks are called in a trace, where the roles call different things alike.

    A server's `combine` is the validators' work if there are any; it adds the result to the model.
    """
    return {"combine": "apply"} if peer.role == "server" and validators else {}
