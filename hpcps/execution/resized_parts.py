"""The parts of a checkpoint from which a run goes on with another number of workers."""

from __future__ import annotations

from dataclasses import replace

from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix
from hpcps.spec.schema import Run
from hpcps.training.schedule import steps_per_epoch


def resized_part(run: Run, peer: Peer, part: CheckpointPart) -> CheckpointPart:
    """Return the part with which a role goes on, from the one that it wrote with the earlier number of workers.

    All trainers are where the epoch begins, as if the number had always been the present one. No worker owes an answer:
    the last round has waited for everyone. What combiners keep of single workers is that of those which stay.

    Args:
        run: the run with its present number of workers.
        peer: the role.
        part: its part of the checkpoint.
    """
    facts, arrays = dict(part.state.facts), dict(part.state.arrays)
    for of_workers in ("readers", "quorum", "positions", "answer"):
        facts.pop(of_workers, None)
    if "trainer" in facts:
        steps, passes, batches = _beginning(run, peer)
        stream = {"passes": passes, "position": batches}
        facts["trainer"] = {**facts["trainer"], "steps": steps, "stream": stream}
    if "steps_per_epoch" in facts:
        coordinator = Roster.of(run).coordinator
        facts["steps_per_epoch"] = steps_per_epoch(run, coordinator.role, coordinator.index)
    staying = min(run.members[-1].workers, run.members[-2].workers)
    gone = [name for name in arrays if _worker_of(name) >= staying]
    return replace(part, state=State({k: v for k, v in arrays.items() if k not in gone}, facts))


def joined_part(run: Run, peer: Peer, lines: Prefix, elapsed: float) -> CheckpointPart:
    """Return the part with which a worker joins: it has the model and its shard, and all else begins anew.

    Args:
        run: the run with its present number of workers.
        peer: the worker.
        lines: those of its record, from an earlier time in the run.
        elapsed: as in `CheckpointPart`.
    """
    facts = {"round": run.members[-1].position, "joins": _beginning(run, peer)}
    return CheckpointPart(State(facts=facts), lines, elapsed, of_lost=True)


def _beginning(run: Run, peer: Peer) -> list[int]:
    """Return where a trainer is when the present number of workers begins; see `Trainer.position`."""
    epoch = run.members[-1].epoch
    return [epoch * steps_per_epoch(run, peer.role, peer.index), epoch * run.train.passes_per_epoch, 0]


def _worker_of(array: str) -> int:
    """Return the worker whose estimate, in the memory `ef21`, an array is; -1 for another array."""
    kept, _, index = array.partition(".")
    return int(index) if kept == "estimates" and index.isdecimal() else -1
