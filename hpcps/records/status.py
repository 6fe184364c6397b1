"""The progress of runs, read from their files; cheap enough to read every second."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hpcps.inputs import finite, printable
from hpcps.protocol.roster import EVALUATOR
from hpcps.records.acceptance import FIELDS, NOTHING, RoundCounts, RunAcceptance
from hpcps.records.evaluation import DIED, evaluator_note
from hpcps.records.failure import Failure
from hpcps.records.files import LEFT, Tail
from hpcps.records.inventory import UNDAMAGED, Damage
from hpcps.records.run_directory import RunDirectory
from hpcps.records.step_state import StepState
from hpcps.records.waits import Waits
from hpcps.spec.tree import get, kind_of

State = Literal["done", "running", "silent", "stopped", "failed", "not started", "damaged"]

SILENT_AFTER = 120.0
"""Seconds without a record after which a run is silent, unless the intervals between its lines are longer."""

_TAIL = 65536
_COORDINATOR_TAIL = 2**20
_WHOLE = 2**62
_WINDOW = 16

_WORK = ("model", "data.name", "data.limit", "data.resize", "train.device")
_ROUND = (
    *("topology", "train.mode", "train.exchange", "train.batch_size", "train.local_steps", "train.threads"),
    *("transport.kind", "heterogeneity", "simulation", "communication.participation"),
)
"""The keys on which the pace of a run depends: of the work of a sample, and of a round."""


def kinds_of(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of a run, from the narrowest to the widest: runs of one kind have about the same pace.

    Runs of the narrowest kind also have the same rule, attack and number of epochs; those of the widest kind only have
    the same model, backend and number of samples in common.

    Args:
        run: the resolved values of its keys.
    """
    work, rounds = ([get(dict(run), key.split(".")) for key in keys] for keys in (_WORK, _ROUND))
    rule = get(dict(run), ("validation", "rule"))
    before = rule.get("before") if isinstance(rule, dict) else None
    formulas = [kind_of(rule), *map(kind_of, before if isinstance(before, list) else ()), kind_of(run.get("attack"))]
    epochs = get(dict(run), ("train", "epochs"))
    return tuple(
        json.dumps(kind) for kind in ([work, rounds, formulas, epochs], [work, rounds, formulas], [work, rounds], work)
    )


@dataclass(frozen=True)
class RunStatus:
    """The status of one run.

    Attributes:
        epoch: finished epochs of the coordinator, as a fraction.
        epochs: the number of epochs of the run.
        pace: mean seconds per epoch in this attempt, or in a finished run; None if not yet known.
        left: remaining seconds at this pace; None unless the run is running and the pace is known.
        round: finished rounds.
        accuracy: the latest test accuracy, 0 to 1.
        perplexity: the latest test perplexity, of a run on text.
        acceptance: what the rule has done with the updates.
        refused: blocks that validator 0 rejected because they were not finite, up to the latest evaluation.
        slowest: the process with the largest recent compute time per local step, such as `worker-3`.
        slowest_step: its seconds of compute per local step.
        age: seconds since the last record.
        attempt: the number of this attempt, from 1.
        failures: the processes that failed, in order of time.
        earlier: the first failure of each failed attempt before this one, the newest attempt first.
        last_line: the last record line of the first process that failed.
        damage: the files that are missing or have changed.
        step_states: with a policy of local steps, what the state server last recorded of each role.
        kinds: the kinds of runs that it belongs to, for forecasts; see `kinds_of`.
        quorum: whether its rounds may close without all workers.
        evaluator: what there is to say of its evaluator; see `evaluator_note`.
        lost: the lines of the processes that were lost, and that the run survived, in order of time.
        resized: the lines of the resizes of a script, in order of time.
        excluded: the lines of the workers that audits have excluded, in order of time.
        paused: the lines of combiners whose rounds wait for replacements.
    """

    path: Path
    run_id: str
    label: str
    state: State
    epoch: float = 0.0
    epochs: int = 0
    pace: float | None = None
    left: float | None = None
    round: int = 0
    accuracy: float | None = None
    perplexity: float | None = None
    acceptance: RunAcceptance = NOTHING
    refused: int = 0
    diverged: bool = False
    slowest: str | None = None
    slowest_step: float | None = None
    age: float | None = None
    attempt: int = 1
    failures: tuple[Failure, ...] = ()
    earlier: tuple[Failure, ...] = ()
    last_line: Mapping[str, Any] = field(default_factory=dict)
    damage: Damage = UNDAMAGED
    step_states: tuple[StepState, ...] = ()
    kinds: tuple[str, ...] = ()
    quorum: bool = False
    evaluator: str = ""
    lost: tuple[Mapping[str, Any], ...] = ()
    resized: tuple[Mapping[str, Any], ...] = ()
    excluded: tuple[Mapping[str, Any], ...] = ()
    paused: tuple[Mapping[str, Any], ...] = ()

    @property
    def stalled(self) -> bool:
        """Whether the rule has accepted nothing in most rounds, though the model has not diverged."""
        return self.acceptance.stalled and not self.diverged

    def planned(self, label: str, run: Mapping[str, Any]) -> RunStatus:
        """Complete a run that has no files yet from its point: the label and the values of its keys."""
        epochs = int(finite(get(dict(run), ("train", "epochs"))))
        return self if self.kinds else replace(self, label=label, epochs=epochs, kinds=kinds_of(run))


class SweepProgress:
    """Follows runs by their folders; each `poll` reads only what was appended since the one before."""

    def __init__(self, paths: Sequence[Path], *, verify: bool = False, requested: bool = False) -> None:
        """Follow the runs with these folders, which may not exist yet.

        Args:
            paths: the folders.
            verify: whether to compare the checksums of the files of finished runs, which are read once for that.
            requested: whether these runs are being executed, so that one that is to start from the beginning has not
                started.
        """
        self._runs = [_Followed(RunDirectory(path), verify, requested) for path in paths]

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def poll(self, now: float | None = None) -> list[RunStatus]:
        """Return the status of each run, in the given order.

        Args:
            now: seconds since 1970; the clock's by default.
        """
        return [run.poll(time.time() if now is None else now) for run in self._runs]


class _Rank:
    """The state of one process, updated from its record."""

    def __init__(self, path: Path, tail: int) -> None:
        self.name = path.stem
        self.tail = Tail(path, tail)
        self.last: dict[str, Any] = {}
        self.attempt = 1
        self.first: dict[str, Any] = {}
        self.round: dict[str, Any] = {}
        self.evaluation: dict[str, Any] = {}
        self.epochs: dict[float, bool] = {}
        self.diverged = self.left = False
        self.deaths: list[dict[str, Any]] = []
        self.lost: list[dict[str, Any]] = []
        self.resized: list[dict[str, Any]] = []
        self.excluded: dict[object, dict[str, Any]] = {}
        self.step_states: dict[str, Any] = {}
        self.pairs: dict[float, tuple[float, ...]] = {}
        self.paces: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self.interval = 0.0

    def follow(self) -> list[dict[str, Any]]:
        """Read the new lines, and return them."""
        lines = self.tail.read()
        for line in lines:
            event = line.get("event")
            if event == "start":
                self.first = self.step_states = {}
                if "continues" not in line:  # otherwise the values before the checkpoint are still valid
                    self.round, self.evaluation, self.diverged = {}, {}, False
                    self.pairs, self.epochs = {}, {}
                    self.lost, self.resized, self.excluded = [], [], {}
                self.left = False
                self.attempt = max(1, int(finite(line.get("attempt"))))
                self.paces.clear()
            elif event == "round":
                steps = finite(line.get("step")) - finite(self.round.get("step")) if self.round else 0.0
                if steps > 0:
                    self.paces.append((finite(line.get("compute")), steps))
                    self.interval = max(self.interval, finite(line.get("time")) - finite(self.round.get("time")))
                self.first = self.first or line
                self.round = line
            elif event in ("evaluation", "not_evaluated"):
                self.epochs[finite(line.get("epoch"))] = event == "evaluation"
                if event == "evaluation":
                    self.evaluation = line
            elif event == "local_steps":
                self.step_states = line
            elif event == "diverged":
                self.diverged = True
            elif event == LEFT:
                self.left = True
            elif event == DIED:
                self.deaths.append(line)
            elif event == "lost":
                self.lost.append(line)
            elif event == "resized":
                self.resized.append(line)
            elif event == "excluded":
                self.excluded[line.get("worker")] = line  # a resumed attempt may state it again
            if "received_pairs" in line:  # a resumed attempt states some rounds again
                self.pairs[finite(line.get("round"))] = _pairs(line)
            self.last = line
        return lines

    @property
    def pace(self) -> float | None:
        """Seconds per epoch, from the first known round of this attempt to the last one."""
        epochs = finite(self.round.get("epoch")) - finite(self.first.get("epoch"))
        return (finite(self.round.get("time")) - finite(self.first.get("time"))) / epochs if epochs > 0 else None

    @property
    def step_seconds(self) -> float:
        """Recent compute seconds per local step; 0 for a process without local steps."""
        steps = sum(steps for _, steps in self.paces)
        return sum(seconds for seconds, _ in self.paces) / steps if steps else 0.0


class _Followed:
    """One run."""

    def __init__(self, directory: RunDirectory, verify: bool, requested: bool) -> None:
        self._directory = directory
        self._verify = verify
        self._requested = requested
        self._spec: dict[str, Any] = {}
        self._kinds: tuple[str, ...] = ()
        self._ranks: dict[Path, _Rank] = {}
        self._waits = Waits()
        self._final: RunStatus | None = None

    def poll(self, now: float) -> RunStatus:
        if self._final is not None:
            return self._final
        if self._requested and self._directory.restarts:
            return self._status(now, None, {}, Damage(done=False), ())
        # Read DONE before the records: if it exists, the records are complete.
        damage, failures = self._directory.damage(contents=self._verify), self._directory.failures
        done = damage.done and not damage
        self._spec = self._spec or self._directory.spec
        run = self._spec.get("run") or {}
        self._kinds = self._kinds or (kinds_of(run) if run else ())
        validated = get(run, ("topology", "validators")) != 0
        evaluators = get(run, ("topology", "evaluators"))
        coordinator, combiners = ("validator-0", "validator-") if validated else ("worker-0", "server-")
        for path in self._directory.records:
            if path not in self._ranks:
                tail = _COORDINATOR_TAIL if path.stem in (coordinator, str(EVALUATOR)) else _TAIL
                # The acceptance rate and the number of evaluated epochs are those of the whole run.
                whole = path.stem.startswith(combiners) or (path.stem == coordinator and evaluators)
                self._ranks[path] = _Rank(path, _WHOLE if whole else tail)
            self._waits.read(path.stem, self._ranks[path].follow())
        ranks = {rank.name: rank for rank in self._ranks.values() if not rank.left}
        status = self._status(now, ranks.get(coordinator), ranks, damage, failures)
        if done:
            self._final = status
        return status

    def _acceptance(self, ranks: Mapping[str, _Rank], evaluation: Mapping[str, Any]) -> RunAcceptance:
        """Count the pairs before the latest evaluation; before the first one, count all."""
        found = np.array([line for rank in ranks.values() for line in rank.pairs.values()]).reshape(-1, len(FIELDS))
        asynchronous = get(self._spec, ("run", "train", "mode")) == "async"
        workers = int(finite(get(self._spec, ("run", "topology", "workers"))))
        counts = RoundCounts(dict(zip(FIELDS, found.T, strict=True)), max(1, workers) if asynchronous else 0)
        position = finite(evaluation.get("time" if asynchronous else "round")) if evaluation else np.inf
        return counts.acceptance(position)

    def _status(
        self,
        now: float,
        coordinator: _Rank | None,
        ranks: Mapping[str, _Rank],
        damage: Damage,
        failures: tuple[Failure, ...],
    ) -> RunStatus:
        done = damage.done and not damage
        changed = max((rank.tail.changed for rank in ranks.values()), default=0.0)
        age = max(0.0, now - changed) if changed else None
        longest = max((rank.interval for rank in ranks.values()), default=0.0)
        ended = {name: rank for name, rank in ranks.items() if rank.last.get("event") == "end"}
        ends = {str(rank.last.get("reason")) for rank in ended.values()}
        evaluator = ranks.get(str(EVALUATOR))
        left = {rank.name for rank in (coordinator, evaluator) if rank is not None}
        state: State = "running"
        if done:
            state = "done"
        elif damage:
            state = "damaged"
        elif failures or "failed" in ends:
            state = "failed"
        elif ends & {"stopped", "suspended"}:
            state = "stopped"
        elif age is None:
            state = "not started"
        elif age > max(SILENT_AFTER, 5 * longest):
            state = "silent"
        awaited = state in ("running", "silent") and bool(ended) and ranks.keys() - ended.keys() == left
        slowest = max(ranks.values(), key=lambda rank: rank.step_seconds, default=None)
        paced = slowest is not None and slowest.step_seconds > 0
        latest, evaluation = (coordinator.round, coordinator.evaluation) if coordinator else ({}, {})
        epochs = int(finite(get(self._spec, ("run", "train", "epochs"))))
        # A round that is longer than an epoch may end after the last epoch.
        epoch = min(max(finite(latest.get("epoch")), finite(evaluation.get("epoch"))), float(epochs or "inf"))
        pace = coordinator.pace if coordinator else None
        if done and epochs and (wall := self._directory.wall) is not None:
            pace = wall / epochs
        earlier = self._directory.earlier_failures
        first = ranks.get(f"{failures[0].role}-{failures[0].index}") if failures else None
        return RunStatus(
            path=self._directory.path,
            run_id=str(self._spec.get("run_id") or self._directory.path.name),
            label=printable(str(self._spec.get("label") or "")),
            state=state,
            epoch=epoch,
            epochs=epochs,
            pace=pace,
            left=max(0.0, (epochs - epoch) * pace - (age or 0.0)) if state == "running" and pace is not None else None,
            round=int(finite(latest.get("round"))) + 1 if latest else 0,
            accuracy=finite(evaluation["accuracy"]) if "accuracy" in evaluation else None,
            perplexity=finite(evaluation["perplexity"]) if "perplexity" in evaluation else None,
            acceptance=self._acceptance(ranks, evaluation),
            refused=int(
                finite((evaluation or latest).get("rejected_blocks_cumulative" if evaluation else "rejected_blocks"))
            ),
            diverged=any(rank.diverged for rank in ranks.values()),
            slowest=slowest.name if slowest and paced else None,
            slowest_step=slowest.step_seconds if slowest and paced else None,
            age=age,
            attempt=max([rank.attempt for rank in ranks.values()] + [len(earlier) + 1]),
            failures=failures,
            earlier=earlier,
            last_line=first.last if first else {},
            damage=damage,
            step_states=StepState.of(ranks["server-0"].step_states) if "server-0" in ranks else (),
            kinds=self._kinds,
            quorum=get(self._spec, ("run", "train", "quorum")) is not None,
            evaluator=""
            if evaluator is None
            else evaluator_note(evaluator.deaths, coordinator.epochs if coordinator else {}, awaited=awaited),
            paused=tuple(self._waits.lines.values()),
            lost=tuple(sorted((line for rank in ranks.values() for line in rank.lost), key=_time)),
            resized=tuple(sorted((line for rank in ranks.values() for line in rank.resized), key=_time)),
            excluded=tuple(sorted((line for rank in ranks.values() for line in rank.excluded.values()), key=_time)),
        )


def _time(line: Mapping[str, Any]) -> float:
    return finite(line.get("time"))


def _pairs(line: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the numbers of `FIELDS`; NaN if a field has none."""
    participants = line.get("participants")
    numbers = dict(line) | {"participants": len(participants) if isinstance(participants, list) else 0}
    return tuple(finite(numbers.get(name), np.nan) for name in FIELDS)
