"""The generations of a script that survives lost processes, in each of which all processes join each other anew.

Each loss begins one, and each resize. The number of their files is the generation, so that all processes, on all hosts,
agree on it without messages: those that live see it change, and a process that is started later finds it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hpcps.errors import RunError, SpecError
from hpcps.launch.losses import Loss, Losses, Resize, resizes
from hpcps.launch.plan import Plan, Rank
from hpcps.protocol.messages import Peer
from hpcps.transport.process_group import LostError

_LOOK_EVERY = 0.02
_SOON, _LATER = 5.0, 60.0
"""Seconds from an error of an exchange until the loss that has caused it is known, on one host and on several, where a
network file system may show a file late."""


class ResizedError(RunError):
    """The script goes on with other processes, and all of these join each other anew."""


class Generation:
    """One generation, as a process knows it.

    Attributes:
        number: its number, from 0.
        plan: the plan of the launch with the processes of this generation.
        survives: whether a loss begins another one; else a launch has only this one.
        file: what the names of the files of this generation begin with: those of arrivals, and of the scheduler.
    """

    def __init__(self, plan: Plan, plan_file: Path) -> None:
        """Take the present generation of a launch."""
        self.survives = plan.script is not None and plan.script.survives
        self._losses = Losses(plan_file)
        self.plan, self._known = self._losses.present(plan) if self.survives else (plan, frozenset[str]())
        self.number = len(self._known)
        self.file = plan_file.with_name(f"{plan_file.name}.{self.number}") if self.number else plan_file
        self._patience = _SOON if len({rank.host for rank in self.plan.world}) == 1 else _LATER

    def check(self) -> None:
        """Check that no process has been lost since, and that the script has not been resized.

        Raises:
            LostError: one has.
            ResizedError: it has.
        """
        if (change := self._first()) is not None:
            raise change

    def is_over(self, *, wait: bool) -> bool:
        """Return whether a process has been lost since, or the script has been resized.

        Args:
            wait: whether an exchange has failed, so that the loss of a process may become known soon.
        """
        deadline = time.monotonic() + (self._patience if wait and self.survives else 0.0)
        while self._first() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EVERY)
        return True

    def since(self, earlier: Generation) -> list[Loss | Resize]:
        """Return the losses and resizes since an earlier generation."""
        return [self._losses.read(name) for name in sorted(self._known - earlier._known)]

    @property
    def is_resized(self) -> bool:
        """Whether the script has been resized since."""
        return bool(set(resizes(self._losses.names())) - self._known)

    def others(self, workers: int, servers: int) -> tuple[Rank, ...]:
        """Return the processes of the next generation with other numbers; all processes of this one find the same.

        Raises:
            SpecError: the launch has its workers combine tensors beside servers.
            LaunchError: its hosts have too few slots.
        """
        script = self.plan.script
        assert script is not None, "others keep their numbers"
        if script.shares:
            raise SpecError("a script of --colocated keeps the numbers of its processes: leave --colocated out")
        from hpcps.launch.hostfile import Host  # here, because every process of a script would wait for them
        from hpcps.launch.placement import place_others

        lists = "gpus", "slot_gpus"
        hosts = [Host(**{**each, **{name: tuple(each[name]) for name in lists}}) for each in script.hosts]
        return place_others(self.plan.world, workers, servers, hosts)

    def resize(self, world: Sequence[Rank]) -> None:
        """Begin another generation with other processes.

        Raises:
            OSError: its file cannot be written.
        """
        self._losses.resize(Resize.of(self.plan.world, world))

    def note_commit(self) -> None:
        """Note that the processes have committed in this generation."""
        self._losses.note_commit(self.number)

    def note_over(self) -> None:
        """Note that all processes have done what they repeat after a loss."""
        if self.survives:
            self._losses.note_over()

    def _first(self) -> RunError | None:
        new = sorted(set(self._losses.names()) - self._known) if self.survives else []
        if not new:
            return None
        try:
            change = self._losses.read(new[0])
        except OSError:  # a network file system may show its name first
            return None
        if isinstance(change, Resize):
            return ResizedError(f"the script goes on with {change}")
        return LostError(Peer(change.role, change.index), change.host, change.why)
