"""Contradictions: keys that are valid separately but not together.

- `topology`: roles, the rule, and the attack
- `training`: model, data, training and evaluation
- `timing`: classes of workers, delays and simulated timing
- `needs`: what keys and components need, compared with what the run offers
- `need`: one of these needs
- `survival`: what `[survive]` and simulated failures need
"""

from __future__ import annotations

from hpcps.spec.checks import needs, timing, topology, training
from hpcps.spec.problems import Problem
from hpcps.spec.schema import Run


def contradictions(run: Run) -> list[Problem]:
    """Return the contradictions of a run whose keys are all valid separately."""
    checks = (*topology.CHECKS, *needs.CHECKS, *timing.CHECKS, *training.CHECKS)
    return [problem for check in checks for problem in check(run)]
