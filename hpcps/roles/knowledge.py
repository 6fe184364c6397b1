"""What the adversary knows of a run: its model and schedule, who is Byzantine, and the updates that workers show."""

from __future__ import annotations

from typing import Any

from hpcps.aggregation.attack_group import AttackGroup
from hpcps.attacks import Omniscient, attackers
from hpcps.numerics.layout import Layout
from hpcps.numerics.state import State
from hpcps.protocol.messages import Copy, Peer
from hpcps.protocol.roster import Roster
from hpcps.protocol.schedule import schedule_of_rounds
from hpcps.roles.resources import Resources
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.schema import Run


class Knowledge:
    """The layout of the model, the schedule, who is Byzantine, and the updates that workers have shown.

    Attributes:
        layout: the blocks of the d elements.
        schedule: the rounds and epochs.
        groups: the workers of each combiner; all workers, if the servers combine.
    """

    def __init__(
        self,
        adversary: Peer,
        run: Run,
        layout: list[list[Any]],
        steps_per_epoch: int,
        resources: Resources,
        weights: UpdateWeights = ALIKE,
    ) -> None:
        """Take what the coordinator says of the model and its epochs.

        Args:
            adversary: the role.
            run: the run.
            layout: the table of `Layout.to_json`.
            steps_per_epoch: the batches of the coordinator in an epoch.
            resources: the resources of the machine that the adversary may use.
            weights: how much the updates of workers count, for attacks that try the rule.
        """
        assert isinstance(run.attack, Omniscient), "the specification has been checked"
        self._attack = run.attack
        self._told = {"layout": layout, "steps_per_epoch": steps_per_epoch}
        self.layout = Layout.from_json(layout)
        self.schedule = schedule_of_rounds(run, steps_per_epoch)
        byzantine = attackers(run.attack, run.topology.workers, run.seed)
        self.groups = tuple(
            AttackGroup(
                adversary,
                index,
                workers,
                byzantine,
                run.attack,
                run.validation.rule,
                run.seed,
                self.layout,
                resources.allocate,
                resources.threads,
                weights.workers,
            )
            for index, workers in enumerate(Roster.of(run).groups())
        )
        self._group_of = {worker: group for group in self.groups for worker in group.workers}

    def group_of(self, worker: int) -> AttackGroup:
        """Return the group that a worker belongs to."""
        return self._group_of[worker]

    def put(self, worker: int, copy: Copy) -> None:
        """Take the update that a worker has shown; the layout fits."""
        self._group_of[worker].put(worker, copy.mask, copy.values)

    def attacks(self, worker: int, round: int, epoch: int) -> bool:
        """Whether a worker's update may be replaced: the worker is Byzantine, and the attack is active."""
        return worker in self._group_of[worker].byzantine and self._attack.active(round, epoch)

    def state(self) -> State:
        """Return what the coordinator said, and what the attack keeps from one round to the next."""
        groups = {f"group{number}": group.state() for number, group in enumerate(self.groups)}
        return State(facts=self._told).having(**groups)

    def updates_state(self) -> State:
        """Return copies of the updates that workers have shown."""
        return State().having(**{f"group{number}": group.updates_state() for number, group in enumerate(self.groups)})

    def restore(self, state: State) -> None:
        """Restore what the attack keeps."""
        for number, group in enumerate(self.groups):
            group.restore(state.part(f"group{number}"))

    def restore_updates(self, state: State) -> None:
        """Restore the updates."""
        for number, group in enumerate(self.groups):
            group.restore_updates(state.part(f"group{number}"))
