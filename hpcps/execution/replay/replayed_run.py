"""Replay a run: execute each of its attempts again in one process, and compare all that they wrote.

Differences between the recorded environment and the present one can change its bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.execution.account import IDLE, RESULT, SAME, STOP, TIMER
from hpcps.execution.replay.driver import ComparedRecord, ReplayDriver, ReplayedEvaluations
from hpcps.execution.resume import restore_role
from hpcps.execution.role_factory import arrival_decides, make_role, role_facts, spread
from hpcps.inputs import regular
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import EVALUATOR, Roster
from hpcps.records.attempts import Attempt, DifferenceError, attempts_of
from hpcps.records.evaluation import DIED
from hpcps.records.provenance import installed_code, machine, packages
from hpcps.records.run_directory import SPEC, RunDirectory
from hpcps.roles.evaluator import EvaluatorRole
from hpcps.spec.identity import revisions, run_id
from hpcps.spec.plugins import used
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Modelled
from hpcps.transport.inproc import Exchange

_PACKAGES = ("numpy", "torch", "mxnet", "gluoncv")

_OF_A_PROCESS = {
    "threads": "threads",
    "device": "device",
    "memory_format": "memory format",
    "cpu_model": "processor",
}
"""Fields of a `start` line, and their names."""


def of_provenance(recorded: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences from the provenance of a run: code, packages, Python."""
    here = packages()
    known = _mapping(recorded.get("packages"))
    python = str(recorded.get("python", "unknown")).partition(" ")[0]
    pairs = [("Python", python, sys.version.partition(" ")[0])]
    pairs += [(name, str(known.get(name, "none")), here.get(name, "none")) for name in _PACKAGES]
    code = str(_mapping(_mapping(recorded.get("installed")).get("hpcps")).get("sha256", "unknown"))
    pairs.append(("SHA-256 of hpcps", code[:10], installed_code()["hpcps"]["sha256"][:10]))
    for name, there, now in pairs:
        if there != now:
            yield _sentence(name, there, now)


def of_settings(spec: Mapping[str, Any], run: Run) -> str | None:
    """Describe that the settings of a run do not belong to its id, which is a hash of them; None if they do.

    The ids of runs with plugins, or before a revision that affects them, may differ here for other reasons.

    Args:
        spec: the content of `spec.json`.
        run: its settings; its plugins are in use.
    """
    recorded, here = spec.get("run_id"), run_id(run)
    foreign = any(entry.origin.identity for entry in used(run).values())
    if here == recorded or foreign or spec.get("revisions", []) != revisions(run):
        return None
    return (
        f"the settings do not belong to the run id {recorded}, but to {here}: they were changed after the run, or "
        "another version of hpcps wrote them; the records are not compared"
    )


def of_starts(starts: Iterable[tuple[Peer, Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the differences between the `start` lines of each process, in a run and in a replay."""
    found: dict[str, list[str]] = {}
    here = {"cpu_model": machine()["cpu"]}
    for peer, there, now in starts:
        for field, name in _OF_A_PROCESS.items():
            value = now.get(field, here.get(field))
            if field in there and there[field] != value:
                found.setdefault(_sentence(name, there[field], value), []).append(str(peer))
    for sentence, processes in found.items():
        yield f"{sentence} ({', '.join(processes)})"


def _sentence(name: str, there: object, now: object) -> str:
    return f"{name}: {there} in the run, {now} here"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


Tell = Callable[[str], None]


@dataclass
class Replayed:
    """The result of a replay.

    Attributes:
        attempts: the number of attempts that were replayed.
        lines: the number of record lines that are equal.
        left: the number of record lines that the replay does not reach, because a process was interrupted, also before
            its first line of an attempt.
        models: the number of files of the final model that are equal.
        difference: the first difference; None if there is none.
    """

    attempts: int = 0
    lines: int = 0
    left: int = 0
    models: int = 0
    difference: DifferenceError | None = None


def replay(directory: RunDirectory, run: Run, folder: Path, tell: Tell) -> Replayed:
    """Replay a run.

    Args:
        directory: the folder of the run.
        run: its settings; its plugins are in use.
        folder: the folder for the files of the replay; it is empty.
        tell: takes each difference between the environments of the run and of the replay.

    Raises:
        RunError: the run cannot be replayed, for the reason in the message.
        DataError: a data file is missing, truncated or corrupt.
    """
    _check(directory, run)
    for difference in of_provenance(directory.provenance):
        tell(difference)
    result, copy, run = Replayed(), RunDirectory(folder), run.identified(str(directory.spec.get("run_id")))
    finished = (directory.path / "DONE").exists()
    before: Sequence[ReplayDriver] = ()
    try:
        if wrong := of_settings(directory.spec, run):
            raise DifferenceError(SPEC, wrong)
        everyone = Roster.of(run).everyone()
        for attempts in _recorded(directory, run, finished=finished):
            if len(attempts) < len(everyone):  # interrupted at its start, before all processes had begun it
                result.left += sum(attempt.left for attempt in attempts.values())
                continue
            result.attempts += 1
            try:
                before = _execute_attempt(run, attempts, copy, before, tell)
            finally:
                result.lines += sum(attempt.compared for attempt in attempts.values())
            _check_progress(before)
            result.left += sum(attempt.left for attempt in attempts.values())
        _check_no_other_records(directory, run)
        result.models = _compare_models(directory, copy, finished=finished)
    except DifferenceError as difference:
        result.difference = difference
    return result


def _check(directory: RunDirectory, run: Run) -> None:
    """Check that the run can be replayed.

    Raises:
        RunError: it cannot.
    """
    if not arrival_decides(run):
        raise RunError(
            f"run {directory.path.name} waits for all workers in each round, whatever the order of messages: "
            "`hpcps run FILE --set transport.kind=inproc` computes the same model again"
        )
    names = {file.stem for file in directory.records}
    if missing := [str(peer) for peer in Roster.of(run).everyone() if str(peer) not in names]:
        raise RunError(f"run {directory.path.name} has no records of {', '.join(missing)}: it cannot be replayed")


def _recorded(directory: RunDirectory, run: Run, *, finished: bool) -> list[dict[Peer, Attempt]]:
    """Return the attempts of the run, each with those processes that have begun it.

    Raises:
        RunError: the records do not suffice for a replay.
    """
    everyone = Roster.of(run).everyone()
    events = {IDLE, RESULT, STOP, TIMER, *(f"{same}{peer}" for peer in everyone for same in ("", SAME))}
    files = {peer: directory.path / "records" / f"{peer}.jsonl" for peer in everyone}
    found = {peer: attempts_of(file, events, finished=finished) for peer, file in files.items()}
    if empty := [str(peer) for peer, each in found.items() if not each]:
        raise RunError(
            f"{', '.join(empty)} has records of no attempt: it was interrupted before its first line, or its record is "
            "damaged; the run cannot be replayed"
        )
    attempts: dict[int, dict[Peer, Attempt]] = {}
    latest = max(each[-1].number for each in found.values())
    for peer, each in found.items():
        # A process was in the last attempt of a finished run. In records of earlier versions each counts its own.
        missed = latest - each[-1].number if finished else 0
        for attempt in each:
            attempts.setdefault(attempt.number + missed, {})[peer] = attempt
    whole = [each for each in attempts.values() if len(each) == len(everyone)]
    if not any(attempt.expected for each in whole for attempt in each.values()):
        raise RunError(
            "the records do not state the order of events: an earlier version of hpcps wrote them, or the run was "
            "interrupted at its start"
        )
    return [attempts[number] for number in sorted(attempts)]


def _execute_attempt(
    run: Run,
    attempts: Mapping[Peer, Attempt],
    directory: RunDirectory,
    before: Sequence[ReplayDriver],
    tell: Tell,
) -> list[ReplayDriver]:
    """Execute an attempt until no process has an event; resume from a checkpoint of the attempts before it."""
    # The evaluator has no part in a checkpoint.
    positions = {attempt.position for peer, attempt in attempts.items() if peer != EVALUATOR}
    resumed = any("continues" in attempt.start for attempt in attempts.values())
    if len(positions) > 1 or resumed is (None in positions):
        raise RunError("the records disagree about the checkpoint from which the run resumed")
    (position,) = positions
    if position is not None:
        _seal(directory, run.id, position, before)
    run = spread(run, len({attempt.start.get("host") for attempt in attempts.values()}))
    exchange = Exchange(scale=run.simulation.model_scale if isinstance(run.simulation, Modelled) else 1.0)
    drivers, starts = [], []
    with ExitStack() as stack:
        for peer, attempt in attempts.items():
            own = None if peer == EVALUATOR else position
            part = None if own is None else directory.checkpoints.read(own, str(peer))
            role = make_role(run, peer)
            if isinstance(role, EvaluatorRole):
                role.evaluations = ReplayedEvaluations(role.evaluations, attempt.following(DIED))
            if problem := restore_role(role, part):
                raise RunError(problem)
            record = ComparedRecord(directory.path, run.id, peer, attempt, part)
            stack.enter_context(record)
            starts.append((peer, attempt.start, role_facts(run, role)))
            record.write("start", **starts[-1][2])
            drivers.append(ReplayDriver(role, exchange.endpoint(peer), record, directory, attempt))
        if not before:
            for difference in of_starts(starts):
                tell(difference)
        left = drivers
        while any([driver.step() for driver in left]):  # noqa: C419 - all of them take a step
            left = [driver for driver in left if not driver.finished]
    return drivers


def _seal(directory: RunDirectory, run_id: str, position: int, drivers: Sequence[ReplayDriver]) -> None:
    """Complete a checkpoint, also if the record of server 0 ends before it learned that all parts are written.

    Raises:
        RunError: the replay did not write all parts.
    """
    if position in directory.checkpoints.positions():
        return
    drivers = [driver for driver in drivers if driver.peer != EVALUATOR]
    parts = {str(driver.peer): driver.snapshots[position] for driver in drivers if position in driver.snapshots}
    if lacking := [str(driver.peer) for driver in drivers if position not in driver.snapshots]:
        raise RunError(f"the records of {', '.join(lacking)} end before the checkpoint at {position}")
    directory.checkpoints.seal(position, run_id, parts, len(directory.checkpoints.positions()) + 1)


def _check_progress(drivers: Sequence[ReplayDriver]) -> None:
    """Check that the replay of an attempt that ended wrote all its lines.

    Raises:
        DifferenceError: it did not, because the roles wait for events that do not come, or a record is truncated.
    """
    if truncated := [driver.attempt.after_last for driver in drivers if driver.attempt.truncated]:
        raise DifferenceError(truncated[0], "the record ends before its process finished, but the run is done")
    if not all(driver.attempt.ended for driver in drivers):
        return
    # Roles wait for one that has messages, but not the one that its record names.
    waiting = sorted((driver for driver in drivers if driver.attempt.left), key=lambda driver: not driver.has_messages)
    if waiting:
        attempt = waiting[0].attempt
        expected = f"the event `{attempt.expected}`" if attempt.expected else "another line"
        raise DifferenceError(attempt.stopped_at, f"the record has {expected}, which does not come in the replay")


def _check_no_other_records(directory: RunDirectory, run: Run) -> None:
    """Check that all records are those of processes of the run.

    Raises:
        DifferenceError: one is not.
    """
    names = {str(peer) for peer in Roster.of(run).everyone()}
    if others := [file for file in directory.records if file.stem not in names]:
        raise DifferenceError(f"records/{others[0].name}", f"the run has no process {others[0].stem}")


def _compare_models(directory: RunDirectory, copy: RunDirectory, *, finished: bool) -> int:
    """Compare the files of the final model, byte for byte; return their number.

    Raises:
        DifferenceError: one is missing or differs.
    """
    files = sorted((directory.path / "final").glob("*.npy"))
    names = {file.name for file in files}
    written = sorted(file.name for file in (copy.path / "final").glob("*.npy")) if finished else []
    if missing := [name for name in written if name not in names]:
        raise DifferenceError(f"final/{missing[0]}", "the replay writes it, but the run does not have it")
    for file in files:
        computed = copy.path / "final" / file.name
        if not computed.exists():
            raise DifferenceError(f"final/{file.name}", "the replay does not write it")
        if computed.read_bytes() != regular(file).read_bytes():
            raise DifferenceError(f"final/{file.name}", "the replay computes another model")
    return len(files)
