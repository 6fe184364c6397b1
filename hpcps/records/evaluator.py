"""What the records of a run say of its evaluator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcps.inputs import finite

DIED = "evaluator_died"
"""The event of the line that the evaluator writes when the process that evaluates has ended."""


def evaluator_note(deaths: Sequence[Mapping[str, Any]], epochs: Mapping[float, bool], *, awaited: bool) -> str:
    """Describe how many epochs it evaluated, how often its process ended, and whether its last evaluation is awaited.

    Args:
        deaths: the lines of the event `DIED`.
        epochs: whether each epoch was evaluated; those that are not decided yet are missing.
        awaited: whether all other processes have ended, but that which gives the models to the evaluator.

    Returns:
        The text; empty if there is nothing to say.
    """
    said = []
    if not all(epochs.values()):
        said.append(f"{sum(epochs.values())} of {len(epochs)} epochs evaluated")
    if deaths:
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        last = f"the model of round {finite(deaths[-1].get('round')):.0f}: it {deaths[-1].get('how')}"
        lost = sum(line.get("again") is False for line in deaths)
        models = f"{lost} model{'s' * (lost != 1)}"
        said.append(
            f"the process that evaluates ended {times}, {'' if len(deaths) == 1 else 'the last time '}with {last}"
            + (f"; {models} could not be evaluated" if lost else "; another process evaluated the model")
        )
    if awaited:
        said.append("the training is over, and the evaluation of the last model is awaited")
    return f"evaluator-0: {'; '.join(said)}" if said else ""
