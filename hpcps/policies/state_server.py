"""The state server: what it knows of the local steps of a round, and its answers to queries."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from hpcps.numerics.state import State
from hpcps.policies.local_steps import Policy, RoleProgress
from hpcps.registry.failures import described, errors_of, returned

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
            seconds: the seconds per step of those since its last report, as the role has measured them.
            now: the time, on the clock of the state server.

        Returns:
            The number of steps; 0: the role sends its update. It is 0 for a report of an earlier round.
        """
        self._adopt(round)
        self._count(role, round, k)
        durations = self._durations[role]
        durations.append(seconds)
        c = sorted(durations)[(len(durations) - 1) // 2]
        if round < self.round:
            self.progress[role] = replace(self.progress[role], c=c)
            return 0
        known = self.progress[role]
        self.progress[role] = replace(known, begun=True, k=max(k, known.k), c=c, te=now)
        left = 0 if known.ready else self._policy.most - k
        further = min(left, self._further(role, now)) if left > 0 else 0
        return further if further > 0 else self.excuse(role)

    def _further(self, role: int, now: float) -> int:
        """Return what the policy says.

        Raises:
            SpecError: its code fails, or it returns something else than a whole number.
        """
        with errors_of(self._policy, "its further_steps() failed", foreign=True):
            further = self._policy.further_steps(role, self.progress, now)
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
        medians = [sorted(each)[(len(each) - 1) // 2] if each else None for each in self._durations]
        self.progress = [RoleProgress(c=c) for c in medians]
