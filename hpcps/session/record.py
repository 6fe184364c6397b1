"""The record of one process of a script: its steps, the numbers that the script logs, and what limited it."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hpcps.errors import SpecError, message_of
from hpcps.execution.stopwatch import Stopwatch
from hpcps.records.files import LEFT
from hpcps.records.provenance import machine
from hpcps.records.writer import RecordWriter
from hpcps.session.member import Member

_RESERVED = ("event", "run", "role", "index", "host", "time", "round", "step")
_TIMES = ("compute", "wait", "combine", "in_flight")
_COMPUTING = 0.9
"""The share of the time from which on computing limits a script."""


class ScriptRecord:
    """Writes the record of a process, and measures its exchange.

    The time of a worker is divided into `compute`, that of its own code, and `wait`, that of waiting for results; in a
    part of both it combined tensors for all, `combine`, and exchanges were in flight, `in_flight`.
    """

    def __init__(self, writer: RecordWriter, member: Member, **facts: object) -> None:
        """Write the first line.

        Args:
            writer: writes the lines.
            member: the process.
            facts: further facts for the first line.
        """
        self._writer, self._member = writer, member
        self._stopwatch = Stopwatch(alone=True)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._reported = (0, 0, 0.0, 0.0)
        self._first_step = self._last_step = 0.0
        self._steps = self._logged = self._resumed = 0
        self._facts: dict[str, object] = {"pid": os.getpid(), **facts, "cpu_model": machine()["cpu"]}
        writer.write("start", **self._facts)

    def resume(self, committed: Mapping[str, Any]) -> None:
        """Write another first line: the record goes on where an earlier attempt of the script was.

        Args:
            committed: what `committed` has returned there; that of another record has no effect.
        """
        if committed.get("run") == self._writer.run_id:
            self._writer.resume(committed["lines"], committed["elapsed"])
            self._steps = self._resumed = committed["steps"]
            self._logged = committed["logged"]
            self._writer.write("start", **self._facts)

    def join(self, other: Mapping[str, Any]) -> None:
        """Count steps as another process does, whose `committed` this is: this one has joined later."""
        if other.get("run") == self._writer.run_id:
            self.resume(self.committed(synced=False) | {name: other[name] for name in ("steps", "logged")})

    def committed(self, *, synced: bool = True) -> dict[str, Any]:
        """Return what continues this record from now on when the script is started again; see `resume`.

        Args:
            synced: whether the lines so far shall survive a power failure.
        """
        if synced:
            self._writer.sync()
        counts = {"steps": self._steps, "logged": self._logged}
        return {"run": self._writer.run_id, "lines": self._writer.lines, "elapsed": self._writer.time, **counts}

    def follow(self, member: Member) -> None:
        """Go on with the same process in the session of the next generation."""
        self._member, self._reported = member, (0, 0, 0.0, 0.0)

    def note_loss(self, process: str, cause: str) -> None:
        """Write a line: a process was lost, and the script goes on."""
        self._writer.write("lost", process=process, cause=cause, round=self._steps)

    def note_resize(self, workers: int, servers: int, joined: Sequence[str], left: Sequence[str]) -> None:
        """Write a line: the script goes on with so many processes; these were not there before, or have left."""
        counts = {"workers": workers, "servers": servers}
        self._writer.write("resized", **counts, joined=list(joined), left=list(left), round=self._steps)

    def leave(self) -> None:
        """Write the last line of a process that leaves the script, which goes on."""
        self._writer.write(LEFT, round=self._steps, continues=self._writer.lines)
        self._writer.close()

    def charge(self, task: str) -> None:
        """Add the time since the last charge to a task: `train` or `wait`."""
        self._stopwatch.charge(task)

    def step(self) -> None:
        """Write a line: a step of the script has ended."""
        self._last_step = time.perf_counter()
        self._first_step = self._first_step or self._last_step
        self._steps += 1
        self._writer.write("round", round=self._steps - 1, step=self._steps, **self._since_the_last())
        if self._steps == self._resumed + 1:  # the time before is mostly that of the start
            self._sums |= dict.fromkeys(_TIMES, 0.0)

    def log(self, epoch: float | None, numbers: Mapping[str, Any]) -> None:
        """Write a line with numbers of the script; without an epoch, the lines are counted.

        Raises:
            SpecError: a name is that of another field, or a value is no number.
        """
        if taken := sorted(set(numbers) & set(_RESERVED)):
            raise SpecError(f"log: every line of a record has the field {taken[0]} already: use another name")
        self._logged += 1
        try:
            # torch warns of a tensor that has a gradient, such as a loss.
            values = {
                name: float(value.detach() if hasattr(value, "detach") else value) for name, value in numbers.items()
            }
            place = {"epoch": float(self._logged if epoch is None else epoch), "round": self._steps}
        except (TypeError, ValueError) as error:
            raise SpecError(f"log expects numbers, or tensors with one element: {message_of(error)}") from error
        self._writer.write("evaluation", **place, step=self._steps, **values)

    def end(self, reason: str, error: str = "") -> None:
        """Write the last line."""
        sums = dict(self._sums)
        self._writer.write("end", reason=reason, **({"error": error} if error else {}), **self._since_the_last())
        if self._steps > self._resumed:  # the time after the last step is mostly that of waiting for the others to end
            self._sums |= {task: sums[task] for task in _TIMES}
        self._writer.close()

    def __str__(self) -> str:
        """Return the steps per second, the bytes, the share of the exchange that was hidden, and what limited it."""
        sums, parts = self._sums, []
        if self._steps > self._resumed + 1:
            rate = (self._steps - self._resumed - 1) / (self._last_step - self._first_step)
            parts.append(f"{self._steps} steps, {rate:.3g} steps/s")
        parts.append(f"{_sized(sums['bytes_sent'])} sent, {_sized(sums['bytes_received'])} received")
        if sums["in_flight"]:
            hidden = max(0.0, 1 - sums["wait"] / sums["in_flight"])
            parts.append(f"{hidden:.0%} of the exchange hidden behind computing")
        return "; ".join([*parts, self._limit()])

    def _limit(self) -> str:
        """Return what limited the process: computing, one worker for which others wait, combining, or the exchange."""
        sums, waited = self._sums, self._member.waited
        last = max(waited, key=lambda peer: waited[peer], default=None)
        seconds = waited[last] if last else 0.0
        if self._member.participant is None:
            return f"waited {seconds:.1f} s for {last}, which came last" if last else "combined nothing"
        share = sums["compute"] / max(sums["compute"] + sums["wait"], 1e-9)
        if share >= _COMPUTING:
            return f"limited by computing ({share:.0%} of the time)"
        waits = f"{1 - share:.0%} of the time"
        if last and last != self._member.peer and seconds > sums["wait"] / 2:
            return f"limited by {last}, for which the others wait ({waits})"
        if sums["combine"] > sums["wait"] / 2:
            return f"limited by combining ({waits})"
        return f"limited by the exchange ({waits})"

    def _since_the_last(self) -> dict[str, float]:
        sent, received, combined, in_flight = self._reported
        traffic = self._member.traffic
        self._reported = traffic.sent, traffic.received, self._member.combined, self._member.in_flight
        self._stopwatch.charge("wait" if self._member.participant is None else "train")
        self._stopwatch.add("combine", self._member.combined - combined, 0.0)
        found: dict[str, float] = {"bytes_sent": traffic.sent - sent, "bytes_received": traffic.received - received}
        found |= self._stopwatch.take() | {"in_flight": round(self._member.in_flight - in_flight, 6)}
        for name, value in found.items():
            self._sums[name] += value
        return found


def _sized(count: float) -> str:
    """Return a number of bytes with its unit."""
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"
