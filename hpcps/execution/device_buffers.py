"""Chooses where the buffers of a run are: in the memory of the host, or of devices that exchange it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from hpcps.launch.plan import ACCEPTED, Plan, Rank
from hpcps.numerics.layout import Allocate
from hpcps.numerics.vectors import Device, DeviceError
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run
from hpcps.transport.device import DeviceLink, absence, open_device
from hpcps.transport.process_group import ProcessGroup


@dataclass(frozen=True)
class Buffers:
    """The buffers of one process in one run.

    Attributes:
        mode: `direct` if MPI gets their addresses, else `staged`.
        why: why.
        link: how they reach the peers; None if they are in the memory of the host.
        direct: the peers to which MPI sends them from the device.
        refusal: why the run cannot have the buffers that it demands; empty if it can.
    """

    mode: str
    why: str
    link: DeviceLink | None = None
    direct: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def allocate(self) -> Allocate | None:
        """What allocates them; None if they are in the memory of the host."""
        return None if self.link is None else cast(Allocate, self.link.device.allocate)

    def fields(self) -> dict[str, object]:
        """Return what the record of the process says of them."""
        found = {"": self.mode, "_why": self.why, "_direct": list(self.direct)}
        return {f"device_buffers{name}": value for name, value in found.items() if value}


@dataclass
class DeviceBuffers:
    """Chooses the buffers of the runs of one launch, in every process alike.

    Attributes:
        plan: the plan of the launch.
        group: its processes.
    """

    plan: Plan
    group: ProcessGroup
    _device: Device | None = None
    _said: set[str] = field(default_factory=set)

    def choose(self, run: Run) -> Buffers:
        """Choose the buffers of a run; all processes call this."""
        asked, group = run.transport.buffers, self.group
        if reason := unsuitable(run):
            return Buffers("staged", reason)
        members = {rank: each for rank, each in enumerate(self.plan.world) if self._takes_part(each, run)}
        missing = self._first(members, group.collect(absence() if group.rank in members else ""))
        if missing:
            return self._staged(asked, missing)
        missing = self._first(members, group.collect(self._open() if group.rank in members else ""))
        if missing:
            return self._staged(asked, missing)
        if asked == "auto" and self.plan.device_memory != ACCEPTED:
            return self._staged(asked, self.plan.device_memory)
        if group.rank not in members:
            return Buffers("staged", f"{self.plan.world[group.rank].role} uses no device")
        assert self._device is not None, "it has been opened"
        others = tuple(str(Peer(each.role, each.index)) for rank, each in members.items() if rank != group.rank)
        link = DeviceLink(self._device, frozenset(members))
        return Buffers("direct", "MPI takes the memory of this device", link, others)

    def _takes_part(self, each: Rank, run: Run) -> bool:
        # The models for the evaluator are copied to the host first, so that the coordinator goes on with its own.
        return each.role not in ("adversary", "evaluator") and Peer(each.role, each.index) in Roster.of(run).everyone()

    def _first(self, members: Iterable[int], texts: list[str]) -> str:
        """Return the first reason of a process that takes part."""
        found = ((rank, texts[rank]) for rank in members if texts[rank])
        return next((f"{text} ({self.plan.world[rank]} on {self.plan.world[rank].host})" for rank, text in found), "")

    def _staged(self, asked: str, why: str) -> Buffers:
        """Return buffers in the memory of the host, and say why once; an absent device needs no line."""
        if asked != "auto":
            refusal = f'transport.device_buffers = "{asked}": {why}; "auto" takes what works'
            return Buffers("staged", why, refusal=refusal)
        if self._device is not None:
            self._say(f"updates and models on devices are copied through the host: {why}")
        return Buffers("staged", why)

    def _say(self, text: str) -> None:
        """Say something once in a launch; the leader does."""
        if self.group.leads and text not in self._said:
            sys.stderr.write(f"hpcps: {text}\n")
            self._said.add(text)

    def _open(self) -> str:
        """Open the device; return why there is none."""
        if self._device is None:
            try:
                self._device = open_device()
            except DeviceError as error:
                return str(error)
        return ""
