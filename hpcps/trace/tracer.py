"""Notes what one process does from moment to moment, for a price that the run does not feel."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from hpcps.messages import Kind, Malformed, Peer, Received
from hpcps.roles.events import Aside, Compute, Effect, Event, Now, Save, Seal, Send, Settle, Snapshot
from hpcps.trace.clocks import Offset

FORMAT = 1
"""Version of the file; another one is not read."""

_SPANS = 512
_SECONDS = 1.0
# Seconds since the last writing from which on a computation is begun with nothing left to write.
_LATE = 0.1
# Seconds of a role's own code, or of waiting, that are counted to what comes after them.
_SHORT = 20e-6

Detail = tuple[Peer, Kind | None, int]
"""Whom a message is from or to, its kind (None: it is malformed), and its bytes."""

ACTIVITIES = {
    Send: "send",
    Compute: "",
    Now: "",
    Aside: "",
    Settle: "wait",
    Snapshot: "checkpoint",
    Seal: "checkpoint",
    Save: "save",
}
"""The effects that are told apart, and as what; a computation's task is its name. All others are part of the turn."""


class Tracer(Protocol):
    """Is told of everything a role does, as it ends; time since the last call went into it."""

    def idle(self, activity: str, round: int) -> None:
        """Nothing came: it waited, or went on with `train` or a `pause`; successive calls are one span."""

    def event(self, event: Event, round: int) -> None:
        """It took what came."""

    def before(self, effect: Effect, round: int) -> None:
        """Its own code ran, up to the effect it asks for, one of `ACTIVITIES`."""

    def after(self, effect: Effect, round: int) -> None:
        """The effect was carried out."""

    def handled(self, round: int) -> None:
        """Its own code ran to the end of the turn."""

    def beside(self, task: str, start: float, stop: float, round: int) -> None:
        """Something that was begun in a round ran beside all this, from and to these seconds of the clock."""

    def compare(self, offset: Offset) -> None:
        """Its clock was compared with that of the first process."""


class NoTracer:
    """Notes nothing."""

    def idle(self, activity: str, round: int) -> None:
        """See `Tracer.idle`."""

    def event(self, event: Event, round: int) -> None:
        """See `Tracer.event`."""

    def before(self, effect: Effect, round: int) -> None:
        """See `Tracer.before`."""

    def after(self, effect: Effect, round: int) -> None:
        """See `Tracer.after`."""

    def handled(self, round: int) -> None:
        """See `Tracer.handled`."""

    def beside(self, task: str, start: float, stop: float, round: int) -> None:
        """See `Tracer.beside`."""

    def compare(self, offset: Offset) -> None:
        """See `Tracer.compare`."""


class FileTracer:
    """Writes `trace/<role>-<index>.jsonl` in the run's folder: the last attempt's, spans that follow one another.

    The first line is a table: `format`, `session` (the same for all processes of an attempt, and larger in a later
    one), `run`, `role`, `index`, `host`, `clock` (`monotonic` or `virtual`) and `began`, the clock's seconds from which
    on the others count. Then a list for each span: activity, begin and duration in microseconds, round; for `send` and
    `receive` also the other process, the kind of message and its bytes. A table with `beside` (an activity), `start`,
    `length` (microseconds) and `round` is of what ran beside those spans. A table with `at` (microseconds), `offset`
    and `error` (seconds) says what to add to this clock to get the first process's, as measured then.

    Lines are written many at a time, at least every second in which something happens. A trace that cannot be written
    ends, and the run goes on.
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
        self.path = Path(run_directory) / "trace" / f"{peer}.jsonl"
        self._clock = clock
        self._names = dict(names or {})
        self._spans: list[tuple[str, float, float, int, Detail | None]] = []
        self._mark = self._began = self._written = clock()
        self._open: tuple[str, int] | None = None
        self._since = self._mark
        self._file = -1
        head = {
            "format": FORMAT,
            "session": session,
            "run": run_id,
            "role": peer.role,
            "index": peer.index,
            "host": host,
            "clock": "virtual" if virtual else "monotonic",
            "began": self._began,
        }
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._give_up(error)
        self._write(json.dumps(head) + "\n")

    def idle(self, activity: str, round: int) -> None:
        """See `Tracer.idle`."""
        self._go_on(activity, round)
        if self._mark - self._written > _SECONDS and self._spans:
            self._flush()

    def event(self, event: Event, round: int) -> None:
        """See `Tracer.event`."""
        if isinstance(event, Received):
            message = event.message
            self._add("receive", round, (event.source, message.kind, message.payload_bytes))
        elif isinstance(event, Malformed):
            self._add("receive", round, (event.source, None, 0))

    def before(self, effect: Effect, round: int) -> None:
        """See `Tracer.before`."""
        self.handled(round)
        # Of a computation nobody knows how long it takes.
        if isinstance(effect, Compute) and self._mark - self._written > _LATE:
            self._flush()

    def after(self, effect: Effect, round: int) -> None:
        """See `Tracer.after`."""
        if isinstance(effect, Send):
            message = effect.message
            self._add("send", round, (effect.to, message.kind, message.payload_bytes))
        elif isinstance(effect, (Compute, Now, Aside)):
            self._add(self._names.get(effect.task, effect.task), round)
        else:
            self._add(ACTIVITIES[type(effect)], round)

    def handled(self, round: int) -> None:
        """See `Tracer.handled`."""
        self._go_on("handle", round)

    def beside(self, task: str, start: float, stop: float, round: int) -> None:
        """See `Tracer.beside`."""
        name, begin, length = self._names.get(task, task), (start - self._began) * 1e6, (stop - start) * 1e6
        self._write(f'{{"beside":"{name}","start":{begin:.1f},"length":{length:.1f},"round":{round}}}\n')

    def compare(self, offset: Offset) -> None:
        """See `Tracer.compare`."""
        at = round((self._clock() - self._began) * 1e6, 1)
        self._write(json.dumps({"at": at, "offset": offset.seconds, "error": offset.error}) + "\n")

    def close(self) -> None:
        """Write what is left; a second call does nothing."""
        self._close()
        self._flush()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> FileTracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, activity: str, round: int, detail: Detail | None = None) -> None:
        """Note what the time since the last note went into."""
        self._close()
        now = self._clock()
        self._spans.append((activity, self._mark, now, round, detail))
        self._since = self._mark = now
        if len(self._spans) >= _SPANS or now - self._written > _SECONDS:
            self._flush()

    def _go_on(self, activity: str, round: int) -> None:
        """Prolong the open span if it is of this activity, else begin one, with the time since the last note."""
        now = self._clock()
        if self._open != (activity, round):
            self._close()
            self._open = (activity, round)
        self._mark = now

    def _close(self) -> None:
        """End the open span; a short one becomes part of the next."""
        if self._open is not None:
            if self._mark - self._since > _SHORT:
                self._spans.append((self._open[0], self._since, self._mark, self._open[1], None))
            else:
                self._mark = self._since
        self._open, self._since = None, self._mark

    def _flush(self) -> None:
        """Write what was noted; only here it is put into words, as a run feels every microsecond between its turns."""
        lines = []
        for activity, start, stop, round, detail in self._spans:
            line = f'["{activity}",{(start - self._began) * 1e6:.1f},{(stop - start) * 1e6:.1f},{round}'
            if detail is not None:
                peer, kind, size = detail
                line += f',"{peer}","{kind.name if kind else "MALFORMED"}",{size}'
            lines.append(line + "]\n")
        self._spans.clear()
        self._written = self._mark
        self._write("".join(lines))

    def _write(self, text: str) -> None:
        if self._file < 0:
            return
        encoded = text.encode()
        try:
            if os.write(self._file, encoded) == len(encoded):
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
