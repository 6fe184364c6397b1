"""The parts of a checkpoint from which a run goes on with another number of workers."""

from __future__ import annotations

from dataclasses import replace

from hpcps.numerics.state import Position, State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import ADVERSARY, Roster
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix
from hpcps.spec.schema import Run
from hpcps.training.schedule import beginning, steps_per_epoch


def resized_part(run: Run, peer: Peer, part: CheckpointPart) -> CheckpointPart:
    """Return the part with which a role goes on, from the one that it wrote with the earlier number of workers.

    All trainers are where the epoch begins, as if the number had always been the present one, and so are those that a
    combiner knows of, for their replacements. No worker owes an answer: the last round has waited for everyone. What
    combiners keep of single workers is that of those which stay.

    Args:
        run: the run with its present number of workers.
        peer: the role.
        part: its part of the checkpoint, or the one that it goes on from if it was lost.
    """
    facts, arrays = dict(part.state.facts), dict(part.state.arrays)
    for of_workers in ("readers", "quorum", "answer"):
        facts.pop(of_workers, None)
    if "positions" in facts:
        known = ((Peer.parse(name), place) for name, place in facts["positions"].items())
        there = Roster.of(run).readers()
        facts["positions"] = {str(each): _at_beginning(run, each, place) for each, place in known if each in there}
    if facts.get("position") is not None:
        facts["position"] = _at_beginning(run, peer, facts["position"])
    if "trainer" in facts:
        done, passes, batches = beginning(run, peer.role, peer.index)
        stream = {"passes": passes, "position": batches}
        facts["trainer"] = {**facts["trainer"], "steps": done, "stream": stream}
    coordinator = Roster.of(run).coordinator
    steps = {"steps_per_epoch": steps_per_epoch(run, coordinator.role, coordinator.index)}
    staying = min(run.members[-1].workers, run.members[-2].workers)
    if "steps_per_epoch" in facts:
        facts |= steps
    if peer == ADVERSARY:
        facts["known"] = {**facts["known"], **steps}
        for group, shown in facts.get("updates", {}).items():
            kept = [worker for worker in shown["workers"] if worker < staying]
            facts["updates"] = {**facts["updates"], group: {**shown, "workers": kept}}
    gone = [name for name in arrays if _worker_of(name) >= staying]
    return replace(part, state=State({k: v for k, v in arrays.items() if k not in gone}, facts))


def joined_part(run: Run, lines: Prefix, elapsed: float) -> CheckpointPart:
    """Return the part with which a worker joins: it has the model and its shard, and all else begins anew.

    So it begins like the replacement of a worker that has sent nothing.

    Args:
        run: the run with its present number of workers.
        lines: those of its record, from an earlier time in the run.
        elapsed: as in `CheckpointPart`.
    """
    facts = {"round": run.members[-1].position, "position": None}
    return CheckpointPart(State(facts=facts), lines, elapsed, of_lost=True)


def _at_beginning(run: Run, peer: Peer, place: Position) -> Position:
    """Return the position of a role with its random streams, and with its data where the epoch begins."""
    return {**place, "data": beginning(run, peer.role, peer.index)}


def _worker_of(array: str) -> int:
    """Return the worker whose estimate, in the memory `ef21`, an array is; -1 for another array."""
    kept, _, index = array.partition(".")
    return int(index) if kept == "estimates" and index.isdecimal() else -1
