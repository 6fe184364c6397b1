"""What the adversary knows of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcps.attacks import Omniscient, attackers
from hpcps.numerics.layout import Layout
from hpcps.numerics.state import State
from hpcps.protocol.messages import Message, Peer
from hpcps.protocol.roster import Roster
from hpcps.protocol.schedule import OpenSchedule, Schedule
from hpcps.roles.attack_group import AttackGroup
from hpcps.roles.resources import Resources
from hpcps.spec.schema import Run


class Knowledge:
    """The layout of the model, the schedule, who is Byzantine, and the updates that workers have shown.

    Attributes:
        layout: the blocks of the d elements.
        schedule: the rounds and epochs.
        groups: the workers of each combiner; all workers, if the servers combine.
    """

    def __init__(self, adversary: Peer, run: Run, note: Mapping[str, Any], resources: Resources) -> None:
        """Take what the coordinator says of the model and its epochs.

        Args:
            adversary: the role.
            run: the run.
            note: the note of the INIT message.
            resources: the resources of the machine that the adversary may use.
        """
        assert isinstance(run.attack, Omniscient), "the specification has been checked"
        self._attack = run.attack
        self._note = {name: note[name] for name in ("layout", "steps_per_epoch")}
        self.layout = Layout.from_json(self._note["layout"])
        train, inside = run.train, run.validation.evaluate == "validator_model"
        self.schedule: Schedule | OpenSchedule = OpenSchedule(train.epochs)
        if train.policy is None:
            steps_per_epoch = self._note["steps_per_epoch"]
            self.schedule = Schedule(train.epochs, steps_per_epoch, train.steps_per_round, inside)
        byzantine = attackers(run.attack, run.topology.workers, run.seed)
        self.groups = tuple(
            AttackGroup(adversary, index, workers, byzantine, run, self.layout, resources)
            for index, workers in enumerate(Roster.of(run).groups())
        )
        self._group_of = {worker: group for group in self.groups for worker in group.workers}

    def group_of(self, worker: int) -> AttackGroup:
        """Return the group that a worker belongs to."""
        return self._group_of[worker]

    def put(self, worker: int, copy: Message) -> None:
        """Take the update that a worker has shown; the layout fits."""
        assert copy.mask is not None, "its blocks have been checked"
        self._group_of[worker].put(worker, copy.mask, copy.values)

    def attacks(self, worker: int, round: int, epoch: int) -> bool:
        """Whether a worker's update may be replaced: the worker is Byzantine, and the attack is active."""
        return worker in self._group_of[worker].byzantine and self._attack.active(round, epoch)

    def state(self) -> State:
        """Return what the coordinator said, and what the attack keeps from one round to the next."""
        groups = {f"group{number}": group.state() for number, group in enumerate(self.groups)}
        return State(facts=self._note).having(**groups)

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
