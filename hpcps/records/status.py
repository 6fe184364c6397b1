"""How far runs are, found out from their files alone, and cheaply enough to ask every second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hpcps.records.lines import decode_all
from hpcps.records.run_directory import Failure, RunDirectory
from hpcps.spec.tree import get

State = Literal["done", "running", "stalled", "stopped", "failed", "not started"]

STALLED_AFTER = 120.0
"""Seconds without a record after which a run counts as stalled, unless its own lines come at longer intervals."""

_TAIL = 65536
_CHIEF_TAIL = 2**20
_WINDOW = 16


@dataclass(frozen=True)
class RunStatus:
    """One run at a glance.

    Attributes:
        epoch: epochs behind it, a fraction; those of validator 0, or of worker 0 without validators.
        epochs: epochs it shall have.
        round: rounds behind it.
        accuracy: the latest test accuracy, 0 to 1.
        acceptance_rate: accepted (update, block) pairs over received ones in the epoch before the latest evaluation,
            or, before the first one, in the latest round; 0 to 1.
        slowest: the process with the largest compute time per local step of late, such as `worker-3`.
        slowest_step: its seconds of compute per local step.
        age: seconds since the last record.
        failures: who gave up, the first one first.
        last_line: the last record line of the first one that gave up.
    """

    path: Path
    run_id: str
    label: str
    state: State
    epoch: float = 0.0
    epochs: int = 0
    round: int = 0
    accuracy: float | None = None
    acceptance_rate: float | None = None
    diverged: bool = False
    slowest: str | None = None
    slowest_step: float | None = None
    age: float | None = None
    failures: tuple[Failure, ...] = ()
    last_line: Mapping[str, Any] = field(default_factory=dict)


class Progress:
    """Follows runs by their folders; each `poll` reads only what was appended since the one before."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Follow the runs with these folders, whether they exist yet or not."""
        self._runs = [_Followed(RunDirectory(path)) for path in paths]

    def poll(self, now: float | None = None) -> list[RunStatus]:
        """Return where each run stands, in the order given.

        Args:
            now: seconds since 1970; the clock's by default.
        """
        return [run.poll(time.time() if now is None else now) for run in self._runs]


class _Tail:
    """The lines appended to one record file since the last look."""

    def __init__(self, path: Path, first: int) -> None:
        """Start at most `first` bytes before the file's end."""
        self.path = path
        self.changed = 0.0
        self._first = first
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        try:
            now = self.path.stat()
            self.changed = now.st_mtime
            if self._offset is None or now.st_size < self._offset:  # shorter: a new attempt cut off a torn line
                self._offset, self._rest = max(0, now.st_size - self._first), b""
            if now.st_size == self._offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                text = file.read(now.st_size - self._offset)
        except OSError:
            return []
        self._offset += len(text)
        whole, newline, self._rest = (self._rest + text).rpartition(b"\n")
        return decode_all(whole + newline).lines


class _Rank:
    """What is remembered of one process."""

    def __init__(self, path: Path, chief: bool) -> None:
        self.name = path.stem
        self.tail = _Tail(path, _CHIEF_TAIL if chief else _TAIL)
        self.last: dict[str, Any] = {}
        self.round: dict[str, Any] = {}
        self.evaluation: dict[str, Any] = {}
        self.diverged = False
        self.paces: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self.interval = 0.0

    def follow(self) -> None:
        for line in self.tail.read():
            event = line.get("event")
            if event == "start":
                self.round, self.evaluation, self.diverged = {}, {}, False
                self.paces.clear()
            elif event == "round":
                steps = _number(line, "step") - _number(self.round, "step") if self.round else 0.0
                if steps > 0:
                    self.paces.append((_number(line, "compute"), steps))
                    self.interval = max(self.interval, _number(line, "time") - _number(self.round, "time"))
                self.round = line
            elif event == "evaluation":
                self.evaluation = line
            elif event == "diverged":
                self.diverged = True
            self.last = line

    @property
    def step_seconds(self) -> float:
        """Seconds of compute per local step of late; 0 for a process without local steps."""
        steps = sum(steps for _, steps in self.paces)
        return sum(seconds for seconds, _ in self.paces) / steps if steps else 0.0


class _Followed:
    """One run."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._spec: dict[str, Any] = {}
        self._ranks: dict[Path, _Rank] = {}
        self._final: RunStatus | None = None

    def poll(self, now: float) -> RunStatus:
        if self._final is not None:
            return self._final
        # Before the records: what they hold when DONE is there is all there will be.
        done, failures = self._directory.done, self._directory.failures
        self._spec = self._spec or self._directory.spec
        run = self._spec.get("run") or {}
        chief = "validator-0" if get(run, ("topology", "validators")) != 0 else "worker-0"
        for path in self._directory.records:
            if path not in self._ranks:
                self._ranks[path] = _Rank(path, path.stem == chief)
            self._ranks[path].follow()
        ranks = {rank.name: rank for rank in self._ranks.values()}
        status = self._status(now, ranks.get(chief), ranks, done, failures)
        if done:
            self._final = status
        return status

    def _status(
        self, now: float, chief: _Rank | None, ranks: Mapping[str, _Rank], done: bool, failures: tuple[Failure, ...]
    ) -> RunStatus:
        changed = max((rank.tail.changed for rank in ranks.values()), default=0.0)
        age = max(0.0, now - changed) if changed else None
        longest = max((rank.interval for rank in ranks.values()), default=0.0)
        ends = {rank.last.get("reason") for rank in ranks.values() if rank.last.get("event") == "end"}
        state: State = "running"
        if done:
            state = "done"
        elif failures or "failed" in ends:
            state = "failed"
        elif ends & {"stopped", "suspended"}:
            state = "stopped"
        elif age is None:
            state = "not started"
        elif age > max(STALLED_AFTER, 5 * longest):
            state = "stalled"
        slowest = max(ranks.values(), key=lambda rank: rank.step_seconds, default=None)
        paced = slowest is not None and slowest.step_seconds > 0
        latest, evaluation = (chief.round, chief.evaluation) if chief else ({}, {})
        acceptance = evaluation.get("acceptance_rate_epoch", latest.get("acceptance_rate"))
        first = ranks.get(f"{failures[0].role}-{failures[0].index}") if failures else None
        return RunStatus(
            path=self._directory.path,
            run_id=str(self._spec.get("run_id") or self._directory.path.name),
            label=str(self._spec.get("label") or ""),
            state=state,
            epoch=max(_number(latest, "epoch"), _number(evaluation, "epoch")),
            epochs=int(get(self._spec, ("run", "train", "epochs")) or 0),
            round=int(_number(latest, "round")) + 1 if latest else 0,
            accuracy=_number(evaluation, "accuracy") if evaluation else None,
            acceptance_rate=acceptance if isinstance(acceptance, (int, float)) else None,
            diverged=any(rank.diverged for rank in ranks.values()),
            slowest=slowest.name if slowest and paced else None,
            slowest_step=slowest.step_seconds if slowest and paced else None,
            age=age,
            failures=failures,
            last_line=first.last if first else {},
        )


def _number(line: Mapping[str, Any], name: str) -> float:
    value = line.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
