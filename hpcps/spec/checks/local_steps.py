"""Checks of the policy of local steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.spec.checks.paths import MODE, SERVERS, WORKERS
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Modelled, NoSimulation

_STEPS = ("train", "local_steps")


def _policy_has_rounds(run: Run) -> Iterator[Problem]:
    policy = run.train.policy
    if policy is None:
        return
    if run.topology.alone:
        message = "the single-process baseline has nobody to wait for: use a number of steps"
        yield Problem(_STEPS, message, (SERVERS, WORKERS))
    elif run.train.mode == "async":
        message = f'{policy.kind} fits local steps into a round, and only train.mode = "sync" has rounds: use a number'
        yield Problem(_STEPS, message, (MODE,))


def _policy_has_times(run: Run) -> Iterator[Problem]:
    if run.train.policy and run.transport.in_process and isinstance(run.simulation, NoSimulation):
        yield Problem(
            _STEPS,
            f"in one process computation takes no time, so {run.train.policy.kind} knows no speeds: add a "
            '[simulation], or use transport.kind = "mpi"',
            (("transport", "kind"), ("simulation",)),
        )


def _epochs_end_with_rounds(run: Run) -> Iterator[Problem]:
    if run.train.policy and run.validation.evaluate == "validator_model":
        yield Problem(
            ("validation", "evaluate"),
            "validator_model tests the coordinator's own network at the end of its epoch, but with a policy of local "
            'steps the steps of all workers count, and an epoch ends with a round: set evaluate = "global_model"',
            (_STEPS,),
        )


def _keys_of_rounds_act(run: Run) -> Iterator[Problem]:
    if run.train.global_lr != 1:
        path = ("train", "global_lr")
        if run.topology.alone:
            yield Problem(path, "the single-process baseline combines no updates: leave it out", (SERVERS, WORKERS))
        elif run.train.mode == "async":
            message = f"only synchronous training uses it: use asynchronous.alpha = {quote(run.train.global_lr)}"
            yield Problem(path, message, (MODE,))
    if isinstance(run.simulation, Modelled) and run.simulation.query and not run.train.policy:
        message = "without a policy of local steps there are no queries: leave it out"
        yield Problem(("simulation", "query"), message, (_STEPS,))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _policy_has_rounds,
    _policy_has_times,
    _epochs_end_with_rounds,
    _keys_of_rounds_act,
)
