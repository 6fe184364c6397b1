"""Policies of local steps, such as DyLU and ESync, and the state server, which answers the queries of roles with them.

DyLU: in proportion to the speed of a role. ESync: as the slowest role permits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import floor
from statistics import median
from typing import Literal

from pydantic import Field, model_validator

from hpcps.numerics.state import State
from hpcps.registry import Config
from hpcps.registry.config import DAY, LARGEST_FACTOR, MOST
from hpcps.registry.failures import described, errors_of, returned


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
    durations: Literal["reported", "measured"] = Field(
        "reported",
        description="The seconds per step that count: `reported`: those that a role has measured; `measured`: those "
        "from one of its messages to the next on server 0, latency included, about which a role cannot lie.",
    )
    clip: float | None = Field(
        None,
        gt=1,
        le=LARGEST_FACTOR,
        description="The largest factor between the seconds per step of a role and the median of the others, to which "
        "they are limited in either direction; by default there is no limit.",
    )

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


_KEPT = 3
"""The number of durations of each role whose lower median counts as its seconds per step: it ignores a single step that
took long, such as the first one of a process, and follows a change of speed after two steps."""


class StateServer:
    """Decides how many local steps the roles of a run take, and counts them.

    It is not a role: server 0 has one, reads the clock for it, and sends its answers. Reports may come in any order; it
    never waits for any.

    Attributes:
        round: the newest round that a role has begun.
        progress: what is known of each role in that round.
        steps: the local steps that the workers have taken in the run.
        taken: the local steps of each role in that round: as many as it says, but no more than it was allowed.
    """

    def __init__(self, policy: Policy, roles: int, workers: int) -> None:
        """Begin to count.

        Args:
            policy: decides.
            roles: the number of roles that the policy decides for.
            workers: how many of them are workers; they come first, and only their steps count.
        """
        self._policy = policy
        self._workers = workers
        self._durations: list[deque[float]] = [deque(maxlen=_KEPT) for _ in range(roles)]
        self._counted = [(-1, 0)] * roles
        self.round = -1
        self.progress = [RoleProgress() for _ in range(roles)]
        self.taken, self._allowed = [1] * roles, [1] * roles  # it takes the first step without asking
        self.steps = 0

    def begin(self, role: int, round: int, now: float) -> None:
        """Note that a role begins a round: it takes its first step.

        Args:
            role: the index of the role.
            round: the round.
            now: the time, on the clock of the state server.
        """
        self._adopt(round)
        if round == self.round:
            self.progress[role] = replace(self.progress[role], begun=True, te=now)

    def report(self, role: int, round: int, k: int, seconds: float, now: float) -> int:
        """Note that a role has taken steps; return how many it takes before it reports again.

        Args:
            role: the index of the role.
            round: the round.
            k: its steps of the round so far.
            seconds: the seconds per step of those since its last report, as the role reports them.
            now: the time, on the clock of the state server.

        Returns:
            The number of steps; 0: the role sends its update. It is 0 for a report of an earlier round.
        """
        self._adopt(round)
        self._count(role, round, k)
        durations, known = self._durations[role], self.progress[role]
        if self._policy.durations == "reported":
            durations.append(seconds)
        elif round == self.round and known.begun and k > known.k:
            durations.append(max(now - known.te, 0.0) / (k - known.k))
        c = _lower_median(durations) if durations else None
        if round < self.round:
            self.progress[role] = replace(known, c=c)
            return 0
        self.progress[role] = replace(known, begun=True, k=max(k, known.k), c=c, te=now)
        left = 0 if known.ready else self._policy.most - k
        further = min(left, self._further(role, now)) if left > 0 else 0
        self.taken[role] = max(self.taken[role], min(k, self._allowed[role]))
        self._allowed[role] = max(self._allowed[role], self.taken[role] + further)
        return further if further > 0 else self.excuse(role)

    def _further(self, role: int, now: float) -> int:
        """Return what the policy says.

        Raises:
            SpecError: its code fails, or it returns something else than a whole number.
        """
        with errors_of(self._policy, "its further_steps() failed", foreign=True):
            further = self._policy.further_steps(role, clipped(self.progress, self._policy.clip), now)
        if not isinstance(further, int):
            raise returned(self._policy, "further_steps", f"{described(further)} instead of a whole number")
        return further

    def excuse(self, role: int) -> int:
        """Note that a role sends its update; return 0, the answer."""
        self.progress[role] = replace(self.progress[role], ready=True)
        return 0

    def _adopt(self, round: int) -> None:
        """Begin a new round: nobody has begun it, and the speeds are those of the rounds before."""
        if round > self.round:
            self.round = round
            self.progress = [RoleProgress(c=role.c) for role in self.progress]
            self.taken, self._allowed = ([1] * len(self.progress) for _ in range(2))

    def _count(self, role: int, round: int, k: int) -> None:
        before, counted = self._counted[role]
        more = k - counted if round == before else k
        if round < before or more <= 0:
            return
        self._counted[role] = (round, k)
        self.steps += more if role < self._workers else 0

    def state(self) -> State:
        """Return the speeds and the counts, for a checkpoint between two rounds."""
        return State(facts={"steps": self.steps, "durations": [list(each) for each in self._durations]})

    def restore(self, state: State) -> None:
        """Restore them."""
        self.steps = state.facts["steps"]
        self._durations = [deque(each, maxlen=_KEPT) for each in state.facts["durations"]]
        self.progress = [RoleProgress(c=_lower_median(each) if each else None) for each in self._durations]


def clipped(progress: Sequence[RoleProgress], factor: float | None) -> Sequence[RoleProgress]:
    """Return the progress of roles whose seconds per step differ at most by a factor from the median of the others."""
    if factor is None:
        return progress
    found = []
    for role, each in enumerate(progress):
        others = [other.c for k, other in enumerate(progress) if k != role and other.c is not None]
        if each.c is not None and others:
            middle = median(others)
            each = replace(each, c=min(max(each.c, middle / factor), middle * factor))
        found.append(each)
    return found


def _lower_median(durations: Collection[float]) -> float:
    return sorted(durations)[(len(durations) - 1) // 2]
