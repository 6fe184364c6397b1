"""Replay a run: execute each of its attempts again in one process, and compare all that they wrote.

Differences between the recorded environment and the present one can change its bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.execution.account import IDLE, LOST, REPLACED, RESULT, SAME, SKIPPED, STOP, STOP_AT_EPOCH, TIMER
from hpcps.execution.replay.processes import Processes, Start
from hpcps.execution.role_factory import arrival_decides, spread
from hpcps.inputs import regular
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.records.attempts import Attempt, DifferenceError, attempts_of
from hpcps.records.files import read_lines, record_file
from hpcps.records.provenance import installed_code, machine, packages
from hpcps.records.run_directory import SPEC, RunDirectory
from hpcps.spec.identity import revisions, run_id
from hpcps.spec.members import members_of
from hpcps.spec.plugins import used
from hpcps.spec.schema import Run

_PACKAGES = ("numpy", "torch", "mxnet", "gluoncv")

_DIGITS = 16
"""The digits of a number in `order` are fewer."""

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


def of_starts(starts: Iterable[Start]) -> Iterator[str]:
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
    before: Processes | None = None
    try:
        if wrong := of_settings(directory.spec, run):
            raise DifferenceError(SPEC, wrong)
        for recorded in _recorded(directory, run, finished=finished):
            attempts = [attempt for several in recorded.values() for attempt in several]
            present = _at(run, recorded)
            if not _needed(present) <= recorded.keys():  # interrupted at its start, before all processes had begun it
                result.left += sum(attempt.left for attempt in attempts)
                continue
            result.attempts += 1
            try:
                before = _execute_attempt(present, recorded, copy, before, tell)
            finally:
                result.lines += sum(attempt.compared for attempt in attempts)
            before.check_progress()
            result.left += sum(attempt.left for attempt in attempts)
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
    if not arrival_decides(run) and not members_of(directory.spec):
        raise RunError(
            f"run {directory.path.name} waits for all workers in each round, whatever the order of messages: "
            "`hpcps run FILE --set transport.kind=inproc` computes the same model again"
        )
    names = {file.stem for file in directory.records}
    needed = _needed(run)
    if missing := [str(peer) for peer in Roster.of(run).everyone() if peer in needed and str(peer) not in names]:
        raise RunError(f"run {directory.path.name} has no records of {', '.join(missing)}: it cannot be replayed")


def _at(run: Run, attempts: Mapping[Peer, Sequence[Attempt]]) -> Run:
    """Return the run with the number of workers of an attempt."""
    return run.resized(members_of(attempts[SERVER_0][0].start)) if SERVER_0 in attempts else run


def _everyone(directory: RunDirectory, run: Run) -> Roster:
    """Return the roster of all roles that the run has had, also in attempts that were given up."""
    workers = run.topology.workers
    with suppress(OSError):  # it is reported as missing
        for line in read_lines(record_file(directory.path, str(SERVER_0))).lines:
            if line.get("event") == "start":
                workers = max([workers, *(each.workers for each in members_of(line))])
    return replace(Roster.of(run), workers=workers)


def _needed(run: Run) -> frozenset[Peer]:
    """Return the roles that the run cannot lose; others may be killed before their first line."""
    roster = Roster.of(run)
    return frozenset(roster.everyone()).difference(roster.replaceable(run))


def _names(run: Run, roster: Roster) -> Callable[[str], bool]:
    """Return what tells whether `order` of a run may have a name."""
    everyone, killable = roster.everyone(), roster.replaceable(run)
    names = {IDLE, RESULT, STOP, STOP_AT_EPOCH, TIMER, *(f"{same}{peer}" for peer in everyone for same in ("", SAME))}
    names |= {f"{LOST}{peer}" for peer in killable}
    numbered = {f"{REPLACED}{peer}" for peer in killable} | {f"{SKIPPED}{peer}" for peer in everyone if killable}

    def is_event(name: str) -> bool:
        start, _, number = name.rpartition(" ")
        return name in names or (start in numbered and number.isdecimal() and len(number) < _DIGITS)

    return is_event


def _recorded(directory: RunDirectory, run: Run, *, finished: bool) -> list[dict[Peer, list[Attempt]]]:
    """Return the attempts of the run, each with those processes that have begun it, and with replacements.

    Raises:
        RunError: the records do not suffice for a replay.
    """
    roster, checksums, ordered = _everyone(directory, run), directory.checksums, arrival_decides(run)
    is_event, lost = _names(run, roster), roster.replaceable(run)
    last = run.resized(members_of(directory.spec))
    there, present = Roster.of(last).everyone(), _needed(last)
    found: dict[Peer, list[Attempt]] = {}
    for peer in roster.everyone():
        file, killable = record_file(directory.path, str(peer)), peer in lost
        if not file.exists() and peer not in _needed(run):
            continue  # it was killed before its first line, or had to join an attempt that was
        # `DONE` lists the records of the processes that have finished: others were lost.
        ends = finished and peer in there and not (killable and f"records/{file.name}" not in checksums)
        found[peer] = attempts_of(file, is_event, finished=ends, replaceable=killable, ordered=ordered)
    if empty := [str(peer) for peer, each in found.items() if peer not in lost and not each]:
        raise RunError(
            f"{', '.join(empty)} has records of no attempt: it was interrupted before its first line, or its record is "
            "damaged; the run cannot be replayed"
        )
    attempts: dict[int, dict[Peer, list[Attempt]]] = {}
    latest = max(each[-1].number for each in found.values() if each)
    for peer, each in found.items():
        # A process was in the last attempt of a finished run. In records of earlier versions each counts its own.
        missed = latest - each[-1].number if finished and peer in present else 0
        for attempt in each:
            attempt.lost |= finished and attempt.number == latest and not attempt.ended and peer in lost
            attempts.setdefault(attempt.number + missed, {}).setdefault(peer, []).append(attempt)
    whole = [each for each in attempts.values() if _needed(_at(run, each)) <= each.keys()]
    if ordered and not any(attempt.expected for each in whole for several in each.values() for attempt in several):
        raise RunError(
            "the records do not state the order of events: an earlier version of hpcps wrote them, or the run was "
            "interrupted at its start"
        )
    return [attempts[number] for number in sorted(attempts)]


def _execute_attempt(
    run: Run,
    attempts: Mapping[Peer, Sequence[Attempt]],
    directory: RunDirectory,
    before: Processes | None,
    tell: Tell,
) -> Processes:
    """Execute an attempt until no process has an event; resume from a checkpoint of the attempts before it."""
    began = {peer: several[0] for peer, several in attempts.items() if not several[0].incarnation}
    # The evaluator has no part in a checkpoint.
    lost = {peer for peer, attempt in began.items() if attempt.start.get("without_part")}
    positions = {attempt.position for peer, attempt in began.items() if peer not in (EVALUATOR, *lost)}
    resumed = any("continues" in attempt.start for attempt in began.values())
    if len(positions) > 1 or resumed is (None in positions):
        raise RunError("the records disagree about the checkpoint from which the run resumed")
    (position,) = positions
    if position is not None:
        _seal(directory, run, position, before, lost)
    run = spread(run, len({attempt.start.get("host") for attempt in began.values()}))
    processes = Processes(run, attempts, directory, position)

    def compare(starts: Sequence[Start]) -> None:
        for difference in of_starts(starts) if before is None else ():
            tell(difference)

    processes.execute(compare)
    return processes


def _seal(directory: RunDirectory, run: Run, position: int, before: Processes | None, lost: Collection[Peer]) -> None:
    """Complete a checkpoint, also if the record of server 0 ends before it learned that all parts are written.

    Raises:
        RunError: the replay did not write all parts.
    """
    if position in directory.checkpoints.positions():
        return
    roster, members = Roster.of(run), run.members
    if len(members) > 1 and position == members[-1].position:
        roster = replace(roster, workers=members[-2].workers)
    roles = [peer for peer in roster.with_state() if peer not in lost]
    parts = {str(peer): None if before is None else before.checksum(peer, position) for peer in roles}
    # Nobody goes on from the part of a worker that has left the run, and it may have been lost before.
    left = [str(peer) for peer in roster.replaceable(run) if peer not in Roster.of(run).everyone()]
    parts = {name: checksum for name, checksum in parts.items() if checksum is not None or name not in left}
    if lacking := [name for name, checksum in parts.items() if checksum is None]:
        raise RunError(f"the records of {', '.join(lacking)} end before the checkpoint at {position}")
    written = {name: checksum for name, checksum in parts.items() if checksum is not None}
    directory.checkpoints.seal(position, run.id, written, len(directory.checkpoints.positions()) + 1)


def _check_no_other_records(directory: RunDirectory, run: Run) -> None:
    """Check that all records are those of processes of the run.

    Raises:
        DifferenceError: one is not.
    """
    names = {str(peer) for peer in _everyone(directory, run).everyone()}
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
