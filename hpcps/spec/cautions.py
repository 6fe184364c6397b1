"""What a file may say but hardly means: it is told, and runs all the same."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.rules import Phocas, TrimmedMean
from hpcps.spec.problems import Problem
from hpcps.spec.schema import Run


def cautions(run: Run) -> Iterator[Problem]:
    """Yield what is odd about a valid run."""
    if run.topology.alone:
        return
    yield from _rule_has_enough_updates(run)
    yield from _validators_see_all_classes(run)


def _rule_has_enough_updates(run: Run) -> Iterator[Problem]:
    """With two updates or fewer nothing is left between the extremes."""
    rule, topology = run.validation.rule, run.topology
    if not isinstance(rule, (TrimmedMean, Phocas)):
        return
    combiners = topology.validators or 1
    smallest, largest = topology.workers // combiners, -(-topology.workers // combiners)
    if smallest > 2:
        return
    whose = (
        f"a validator's share of the {topology.workers} workers is {smallest}"
        if topology.validators
        else (f"there are {topology.workers} workers")
    )
    effect = "the model never changes" if largest <= 2 else "such a validator changes nothing"
    yield Problem(
        ("validation", "rule"),
        f"{rule.kind} makes nothing of two updates or fewer, and {whose}: {effect}; use more workers",
        (("topology", "workers"), ("topology", "validators")),
    )


def _validators_see_all_classes(run: Run) -> Iterator[Problem]:
    if run.data.split == "by_class" and run.topology.validators:
        yield Problem(
            ("data", "split"),
            "by_class sorts the samples, and the validators' shard is the last: they see the highest classes only, "
            "and judge updates by these; dirichlet is uneven without that",
            (("topology", "validators"),),
        )
