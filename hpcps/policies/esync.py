"""ESync: as many local steps as fit into one step of the slowest role."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Literal

from pydantic import Field, model_validator

from hpcps.policies.base import Policy, Standing
from hpcps.registry.config import DAY, MOST

_SHARE = 0.05
"""Epsilon as a share of the slowest step, if the experiment does not set it."""


class ESync(Policy):
    """Every role takes as many local steps as fit while the slowest one takes one.

    A role reports each step. With c seconds per step and S the role with the largest c, it goes on if its next step
    ends at least epsilon before the step of S does: c + epsilon <= c_S - (now - te_S), where te_S is when S began. The
    seconds are measured by the roles, the moments by server 0 at the arrival of messages: no two clocks are compared.
    The first step of a role in a run may end at any moment, so nobody takes further steps because of a role that has
    not reported one: in the first round every role takes one step, and the round is as long as the longest.

    Without latency and with stable speeds, S takes 1 step and the others max(1, floor((c_S - epsilon) / c)).

    After Li et al., "ESync: An efficient synchronous parallel algorithm for distributed ML in heterogeneous clusters",
    2019; and "Accelerating intra-domain federated learning in heterogeneous data centers", IEEE TSC,
    doi 10.1109/TSC.2020.3044043.
    """

    kind: Literal["esync"] = "esync"
    epsilon: float | None = Field(
        None,
        ge=0,
        le=DAY,
        description="Seconds by which a step must end before that of the slowest role; default: epsilon_share.",
    )
    epsilon_share: float | None = Field(
        None, ge=0, lt=1, description="The same as a share of the step of the slowest role; default: 0.05."
    )
    blocking: bool = Field(
        True,
        description="Whether a role waits for an answer after each step. If not, an answer states how many further "
        "steps fit, and the role reports each of them but waits only when it has taken all; a later answer replaces an "
        "earlier one. No step is interrupted or discarded.",
    )
    most: int = Field(1000, ge=1, le=MOST, description="The largest number of local steps of a round.")

    @model_validator(mode="after")
    def _one_epsilon(self) -> ESync:
        if self.epsilon is not None and self.epsilon_share is not None:
            raise ValueError("epsilon and epsilon_share set the same: leave one of them out")
        return self

    def same_results(self) -> ESync:
        """Return the same policy without its default share."""
        return self.model_copy(update={"epsilon_share": None}) if self.epsilon_share == _SHARE else self

    @property
    def waits(self) -> bool:
        return self.blocking

    def further_steps(self, asker: int, standings: Sequence[Standing], now: float) -> int:
        own = standings[asker]
        slowest = max(range(len(standings)), key=lambda role: (standings[role].c or 0.0, -role))
        other = standings[slowest]
        if slowest == asker or other.ready or other.c is None or own.c is None:
            return 0
        if not other.begun:
            return 1
        rest = other.c - (now - other.te) - self._margin(other.c)
        if own.c > rest:
            return 0
        return 1 if self.blocking or not own.c else floor(rest / own.c)

    def _margin(self, slowest: float) -> float:
        """Return epsilon in seconds, for the seconds per step of the slowest role."""
        if self.epsilon is not None:
            return self.epsilon
        return slowest * (_SHARE if self.epsilon_share is None else self.epsilon_share)
