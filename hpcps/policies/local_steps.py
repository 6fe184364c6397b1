"""Policies of local steps: in proportion to the speed of a role (DyLU), or as the slowest role permits (ESync)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

from pydantic import Field, model_validator

from hpcps.registry import Config
from hpcps.registry.config import DAY, MOST


@dataclass(frozen=True)
class RoleProgress:
    """What the state server knows of one role; times are on the state server's clock, in seconds.

    Attributes:
        begun: whether the role has begun the round.
        k: its local steps in the round so far.
        c: its seconds per local step; None until it has reported a step.
        te: when its report of its last step, or of the beginning of the round, arrived.
        ready: whether it was asked to send its update.
    """

    begun: bool = False
    k: int = 0
    c: float | None = None
    te: float = 0.0
    ready: bool = False


class Policy(Config, ABC):
    """How many local steps each role takes in a synchronous round; a subclass adds `kind` and its own keys.

    A role takes the first step of a round without asking, so that it takes at least one.
    """

    kind: str
    most: int

    @property
    def waits(self) -> bool:
        """Whether a role takes the steps of an answer together, and then waits for the next answer.

        Otherwise it reports each step, and waits only if the last answer allows no further one.
        """
        return True

    @abstractmethod
    def further_steps(self, asker: int, progress: Sequence[RoleProgress], now: float) -> int:
        """Return how many further steps a role takes; 0: it sends its update.

        The state server asks only while the role has taken fewer than `most` steps, and limits the answer to the rest.

        Args:
            asker: the index of the role in `progress`; its step has just ended, so its `c` is known.
            progress: all roles that the policy decides for.
            now: the time of the query.
        """


_ROUNDING = 1e-6
"""Added before rounding down, because measured durations of equal steps differ in their last digits."""


class DyLU(Policy):
    """Every role takes a number of local steps in proportion to its speed.

    With v steps per second, role i takes H_i = max(1, floor(v_i / v_max * most)) steps, so the fastest takes `most`. A
    role asks after its first step, and after the last one. Until all roles have reported a step, it takes one step at a
    time.

    After Liu et al., "Asynchronous local-SGD training for language modeling", 2024, arXiv 2401.09135.
    """

    kind: Literal["dylu"] = "dylu"
    most: int = Field(50, ge=1, le=MOST, description="Local steps of the fastest role in a round, H.")

    def further_steps(self, asker: int, progress: Sequence[RoleProgress], now: float) -> int:
        own = progress[asker]
        known = [each.c for each in progress if each.c is not None]
        share = min(known) / own.c if own.c else 1.0
        left = max(1, floor(share * self.most + _ROUNDING)) - own.k
        return max(0, left if len(known) == len(progress) else min(left, 1))


_SHARE = 0.05
"""Epsilon as a share of the slowest step, if the experiment does not set it."""


class ESync(Policy):
    """Every role takes as many local steps as fit while the slowest one takes one.

    A role reports each step. With c seconds per step and S the role with the largest c, it goes on if its next step
    ends at least epsilon before the step of S does: c + epsilon <= c_S - (now - te_S), where te_S is when S began. The
    roles measure seconds per step, and server 0 takes the times when messages arrive: no two clocks are compared. The
    first step of a role in a run may end at any time, so nobody takes further steps because of a role that has not
    reported one: in the first round every role takes one step, and the round is as long as the longest.

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

    def further_steps(self, asker: int, progress: Sequence[RoleProgress], now: float) -> int:
        own = progress[asker]
        slowest = max(range(len(progress)), key=lambda role: (progress[role].c or 0.0, -role))
        other = progress[slowest]
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
