"""With `survive.batch = "constant"`: how many samples each worker takes while others are absent."""

from __future__ import annotations

from collections.abc import Collection

from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.spec.schema import Run


def samples_of(run: Run, worker: Peer, there: Collection[int], validators: Collection[int] | None = None) -> int:
    """Return the samples per local step of a worker of a round, so that those of all have as many as if all were there.

    The samples of absent workers are divided among those whose updates are combined with theirs; the first of them take
    one more each if that does not come out even.

    Args:
        run: the run.
        worker: the worker, which is there.
        there: the indices of the workers that have the model of the round.
        validators: those of the validators that have it; None if validators cannot be lost.
    """
    group = _combined_with(Roster.of(run), worker.index, validators)
    present = sorted(group.intersection(there))
    missing = sum(run.batch_size("worker", k) for k in group.difference(there))
    each, more = divmod(missing, len(present))
    return run.batch_size("worker", worker.index) + each + (present.index(worker.index) < more)


def _combined_with(roster: Roster, worker: int, validators: Collection[int] | None) -> set[int]:
    """Return the workers that the combiner of a worker serves, with those that are absent."""
    if not roster.validators:
        return {*range(roster.workers)}
    there = range(roster.validators) if validators is None else validators
    serves = roster.validator_of(worker, there)
    return {k for k in range(roster.workers) if roster.validator_of(k, there) == serves}
