"""Checks of training under a rule that compensates the delay of updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.rules import AsyncRule
from hpcps.spec.checks.paths import MODE
from hpcps.spec.locate import Path
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run

RULE = ("validation", "rule")


def _an_update_is_a_gradient(run: Run) -> Iterator[Problem]:
    """The compensation takes an update as one gradient, multiplied by the learning rate of its step."""
    rule, train = run.validation.rule, run.train
    if not isinstance(rule, AsyncRule) or rule.compares_with is None or train.mode != "async":
        return
    optimizer, steps = train.optimizer, train.local_steps
    reasons: list[tuple[Path, bool, str]] = [
        # Another check refuses a policy.
        (("train", "local_steps"), train.policy is None and steps != 1, f"not {steps} local steps: use 1"),
        (("train", "optimizer", "name"), optimizer.name == "adam", 'adam divides it: use "sgd" with momentum = 0'),
        (
            ("train", "optimizer", "momentum"),
            optimizer.name != "adam" and optimizer.momentum > 0,
            f"not the sum of momentum = {quote(optimizer.momentum)} over earlier steps: set it to 0",
        ),
        (
            ("asynchronous", "proximal", "worker"),
            run.asynchronous.proximal.worker > 0,
            "the proximal step changes it: set it to 0",
        ),
        (
            ("asynchronous", "absent"),
            run.communication.participation < 1 and run.asynchronous.absent == "accumulate",
            'with participation below 1, "accumulate" adds up several: use "reset"',
        ),
    ]
    for path, wrong, why in reasons:
        if wrong:
            message = f"{rule.title} needs updates that are one gradient times the learning rate; {why}"
            yield Problem(path, message, (RULE, MODE))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (_an_update_is_a_gradient,)
