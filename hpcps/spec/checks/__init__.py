"""Contradictions: keys that are valid separately but not together.

- `attack`: the schedule of the attack, and what it delays
- `classes`: classes of workers
- `compensation`: training under a rule that compensates the delay of updates
- `exchange`: transport, delays and simulated timing
- `local_steps`: policies of local steps, and the factor on combined updates
- `paths`: keys that several checks name
- `topology`: roles, the rule and the attackers
- `training`: model, data, training and evaluation
"""

from __future__ import annotations

from hpcps.spec.checks import attack, classes, compensation, exchange, local_steps, topology, training
from hpcps.spec.problems import Problem
from hpcps.spec.schema import Run


def contradictions(run: Run) -> list[Problem]:
    """Return the contradictions of a run whose keys are all valid separately."""
    checks = (
        *topology.CHECKS,
        *attack.CHECKS,
        *classes.CHECKS,
        *compensation.CHECKS,
        *exchange.CHECKS,
        *local_steps.CHECKS,
        *training.CHECKS,
    )
    return [problem for check in checks for problem in check(run)]
