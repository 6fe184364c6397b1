"""How a run goes on with another number of workers: from a checkpoint at the end of an epoch, in a new attempt."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hpcps.data.shards import shard_size, sizes_of_shards
from hpcps.errors import HpcpsError, SpecError
from hpcps.execution.resume import Resume
from hpcps.execution.sweep.claims import directory_of
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import SERVER_0
from hpcps.protocol.schedule import schedule_of_rounds
from hpcps.records.files import LEFT, record_file
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter, last_attempt
from hpcps.registry.config import MOST_ROLES
from hpcps.spec.checks import contradictions
from hpcps.spec.members import WorkerCount, described, members_of
from hpcps.spec.point import Point
from hpcps.spec.problems import dotted
from hpcps.spec.schema import Run


def refusals(run: Run) -> list[str]:
    """Return why the number of workers of a run cannot change, whatever the number."""
    found = [
        (run.topology.alone, "it has no workers"),
        (run.collective, f'with train.exchange = "{run.train.exchange}" the workers keep the model, and not servers'),
        (run.train.policy is not None, "a policy of train.local_steps counts the steps of an epoch over all workers"),
        (run.audits, "validation.audit keeps the states of single workers"),
        (
            run.validation.evaluate == "validator_model" and run.train.steps_per_round > 1,
            'validation.evaluate = "validator_model" evaluates epochs within rounds, and workers change between rounds',
        ),
        (
            run.buffered and run.validation.weights != "equal",
            "asynchronous.buffer keeps updates of workers whose validation.weights change",
        ),
    ]
    return [why for holds, why in found if holds]


def checked(run: Run, members: tuple[WorkerCount, ...]) -> Run:
    """Return a run with another number of workers, after the checks that a file passes.

    Raises:
        SpecError: it cannot have this number; the message has all mistakes.
    """
    workers = members[-1].workers
    if not 0 < workers <= MOST_ROLES:
        raise SpecError(f"a run has 1 to {MOST_ROLES} workers")
    if mistakes := refusals(run):
        raise SpecError("\n  ".join(["the number of workers of this run cannot change:", *mistakes]))
    resized = run.resized(members)
    # Both state all keys, also those without an effect, which is a mistake in a file.
    known = [problem.message for problem in contradictions(run.resized(run.members))]
    if problems := [problem for problem in contradictions(resized) if problem.message not in known]:
        lines = [f"{dotted(problem.path)}: {problem.message}" for problem in problems]
        raise SpecError("\n  ".join([f"the run cannot have {workers} workers:", *lines]))
    size = shard_size(resized.data, resized.largest_batch)
    sizes_of_shards(resized.data, size, resized.seed, held_out=resized.holds_out, least=resized.largest_batch)
    return resized


def with_members(point: Point, results: Path) -> Point:
    """Return a point with the numbers of workers that its folder states, unless it starts from the beginning."""
    directory = directory_of(point, results)
    if directory.restarts or (directory.path / "DONE").exists():
        return point
    return replace(point, members=members_of(directory.spec))


def end_of_epoch(directory: RunDirectory, run: Run) -> WorkerCount | None:
    """Return where a run can go on with another number of workers: its newest checkpoint, if an epoch ends there.

    Args:
        directory: its folder.
        run: the run with its present number of workers, which the result has, too.
    """
    position = next(iter(directory.checkpoints.positions()), None)
    if position is None:
        return None
    try:
        facts = directory.checkpoints.read(position, str(SERVER_0)).state.facts
    except HpcpsError:  # the next attempt says so
        return None
    if run.train.mode == "async":
        epoch, ends = facts["log"]["epoch"], facts.get("epoch_ends", False)
    else:
        schedule = schedule_of_rounds(run, facts["steps_per_epoch"])
        epoch = schedule.ended(position)
        ends = position == run.members[-1].position or schedule.ended(position - 1) < epoch
    return WorkerCount(position, epoch, run.topology.workers) if ends else None


def as_requested(
    point: Point, results: Path, say: Callable[[str], None], try_placement: Callable[[Point], None] = lambda point: None
) -> Point:
    """Return a point with its present number of workers: the one that was requested, if the run is at an epoch's end.

    Args:
        point: a run that this process has claimed and that is not under way.
        results: the folder of all results.
        say: prints a line.
        try_placement: raises an error if there are too few slots for a point.
    """
    point, directory = with_members(point, results), directory_of(point, results)
    wanted, present = None if directory.restarts else directory.resize_requested, point.present
    here = None if wanted is None or refusals(present) else end_of_epoch(directory, present)
    if wanted is None or (here is None and not refusals(present)):
        return point
    try:
        if here is None:
            checked(present, present.members)
        elif wanted != here.workers:
            resized = _resized(point, here, wanted, try_placement)
            for worker in range(wanted, here.workers):
                _record_leaving(directory, present, Peer("worker", worker), here.position)
            directory.write_members(described(resized.members))
            point = resized
            say(
                f"hpcps: run {point.run_id} ({point.label}) goes on with {wanted} workers instead of {here.workers} "
                f"after epoch {here.epoch}"
            )
    except HpcpsError as error:
        say(f"hpcps: run {point.run_id} ({point.label}) stays at {present.topology.workers} workers: {error}")
    if directory.resize_requested == wanted:  # not another one, which came meanwhile
        directory.request_resize(None)
    return point


def _resized(point: Point, here: WorkerCount, workers: int, try_placement: Callable[[Point], None]) -> Point:
    """Return a point that goes on with so many workers from a checkpoint.

    Raises:
        HpcpsError: it cannot.
    """
    before = tuple(each for each in point.present.members if each.position < here.position)
    members = before if before[-1].workers == workers else (*before, here._replace(workers=workers))
    checked(point.present, members)
    resized = replace(point, members=members if len(members) > 1 else ())
    try_placement(resized)
    return resized


def _record_leaving(directory: RunDirectory, run: Run, worker: Peer, position: int) -> None:
    """State in the record of a worker that it leaves the run, and which of its lines are valid."""
    if not record_file(directory.path, str(worker)).exists():
        return  # it was to join an attempt that did not begin, or was lost before its first line
    part = Resume(directory, run, (worker,)).part(position, worker)
    attempt = last_attempt(record_file(directory.path, str(worker)))
    host = socket.gethostname()
    with RecordWriter(directory.path, run.id, *worker, host, part=part, attempt=attempt) as record:
        record.write(LEFT, round=position, continues=part.record.lines, attempt=attempt)
        record.sync()
