"""The generations of a script that survives lost processes: each loss begins one, in which all join each other anew.

The number of the files of losses is the generation, so that all processes, on all hosts, agree on it without messages:
those that live see it change, and a replacement finds it.
"""

from __future__ import annotations

import time
from pathlib import Path

from hpcps.launch.losses import Loss, Losses
from hpcps.launch.plan import Plan
from hpcps.protocol.messages import Peer
from hpcps.transport.process_group import LostError

_LOOK_EVERY = 0.02
_SOON, _LATER = 5.0, 60.0
"""Seconds from an error of an exchange until the loss that has caused it is known, on one host and on several, where a
network file system may show a file late."""


class Generation:
    """One generation, as a process knows it.

    Attributes:
        number: its number, from 0.
        survives: whether a loss begins another one; else a launch has only this one.
        file: what the names of the files of this generation begin with: those of arrivals, and of the scheduler.
    """

    def __init__(self, plan: Plan, plan_file: Path) -> None:
        """Take the present generation of a launch."""
        self.survives = plan.script is not None and plan.script.survives
        self._losses = Losses(plan_file)
        self._known = frozenset(self._losses.names()) if self.survives else frozenset[str]()
        self.number = len(self._known)
        self.file = plan_file.with_name(f"{plan_file.name}.{self.number}") if self.number else plan_file
        self._patience = _SOON if len({rank.host for rank in plan.world}) == 1 else _LATER

    def check(self) -> None:
        """Check that no process has been lost since.

        Raises:
            LostError: one has.
        """
        if (loss := self._first()) is not None:
            raise loss

    def is_over(self, *, wait: bool) -> bool:
        """Return whether a process has been lost since.

        Args:
            wait: whether an exchange has failed, so that the loss of a process may become known soon.
        """
        deadline = time.monotonic() + (self._patience if wait and self.survives else 0.0)
        while self._first() is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EVERY)
        return True

    def losses_since(self, earlier: Generation) -> list[Loss]:
        """Return the processes that were lost since an earlier generation."""
        return [self._losses.read(name) for name in sorted(self._known - earlier._known)]

    def note_commit(self) -> None:
        """Note that the processes have committed in this generation."""
        self._losses.note_commit(self.number)

    def note_over(self) -> None:
        """Note that all processes have done what they repeat after a loss."""
        if self.survives:
            self._losses.note_over()

    def _first(self) -> LostError | None:
        new = sorted(set(self._losses.names()) - self._known) if self.survives else []
        if not new:
            return None
        try:
            loss = self._losses.read(new[0])
        except OSError:  # a network file system may show its name first
            return None
        return LostError(Peer(loss.role, loss.index), loss.host, loss.why)
