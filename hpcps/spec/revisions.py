"""Changes of the code that change the results of some runs without a change of their experiment files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpcps.policies import ESync

if TYPE_CHECKING:
    from hpcps.spec.schema import Run


def _first_step(run: Run) -> bool:
    """Validators take the first step before they have the model, also under rules that need no reference."""
    combines = run.topology.validators > 0 and not run.topology.alone
    return run.train.first_step == "overwritten" and combines and "reference" not in run.validation.rule.requires


def _held_out_shard(run: Run) -> bool:
    """The shard of the validators is drawn uniformly; the split assigns the remaining samples to the other shards."""
    return run.holds_out


def _esync_first_round(run: Run) -> bool:
    """In the first round of a run with esync, every role takes one step."""
    return isinstance(run.train.policy, ESync)


REVISIONS: Mapping[str, Callable[[Run], bool]] = {
    "first-step": _first_step,
    "held-out-shard": _held_out_shard,
    "esync-first-round": _esync_first_round,
}
"""The name of each change, and the runs that it affects. Do not edit or remove entries: run ids depend on them."""


def revisions(run: Run) -> list[str]:
    """Return the names of the changes that affect a run, in alphabetical order."""
    return sorted(name for name, concerns in REVISIONS.items() if concerns(run))
