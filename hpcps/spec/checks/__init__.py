"""Mistakes that no single key shows: values that do not go together."""

from __future__ import annotations

from hpcps.spec.checks import exchange, topology, training
from hpcps.spec.problems import Problem
from hpcps.spec.schema import Run


def contradictions(run: Run) -> list[Problem]:
    """Return what is wrong with a run whose keys are all valid by themselves."""
    checks = (*topology.CHECKS, *exchange.CHECKS, *training.CHECKS)
    return [problem for check in checks for problem in check(run)]
