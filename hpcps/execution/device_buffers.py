"""Chooses where the buffers of a run are: in the memory of the host, or of devices that exchange it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from hpcps.launch.device_trial import ACCEPTED, try_in_place
from hpcps.launch.plan import Plan, Rank
from hpcps.numerics.layout import Allocate
from hpcps.numerics.vectors import Device, DeviceError
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run
from hpcps.transport.device import DeviceLink, absence, open_device
from hpcps.transport.process_group import ProcessGroup

_TOKEN = 4
"""Elements of a vector that a process reads in the memory of another one to see whether it can."""


@dataclass(frozen=True)
class Buffers:
    """The buffers of one process in one run.

    Attributes:
        mode: `in_place` if a peer reads them in place, `direct` if MPI gets their addresses, else `staged`.
        why: why.
        link: how they reach the peers; None if they are in the memory of the host.
        in_place: the peers that read them in place.
        direct: the peers to which MPI sends them from the device.
        refusal: why the run cannot have the buffers that it demands; empty if it can.
    """

    mode: str
    why: str
    link: DeviceLink | None = None
    in_place: tuple[str, ...] = ()
    direct: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def allocate(self) -> Allocate | None:
        """What allocates them; None if they are in the memory of the host."""
        return None if self.link is None else cast(Allocate, self.link.device.allocate)

    def fields(self) -> dict[str, object]:
        """Return what the record of the process says of them."""
        found = {"": self.mode, "_why": self.why, "_in_place": list(self.in_place), "_direct": list(self.direct)}
        return {f"device_buffers{name}": value for name, value in found.items() if value}


def _on_host(run: Run) -> str:
    """Return why the rule of a run combines updates on the host; empty if it combines them on the device."""
    from hpcps.rules.device_combining import why_on_host

    combiners = run.topology.validators or 1
    return why_on_host(run.validation.rule, -(-run.topology.workers // combiners)) if run.topology.workers else ""


@dataclass
class DeviceBuffers:
    """Chooses the buffers of the runs of one launch, in every process alike.

    What takes long is found out once for each launch and host.

    Attributes:
        plan: the plan of the launch.
        group: its processes.
    """

    plan: Plan
    group: ProcessGroup
    _device: Device | None = None
    _trial: str | None = None
    _said: set[str] = field(default_factory=set)

    def choose(self, run: Run) -> Buffers:
        """Choose the buffers of a run; all processes call this."""
        asked, group = run.transport.device_buffers, self.group
        if reason := unsuitable(run):
            return Buffers("staged", reason)
        members = {rank: each for rank, each in enumerate(self.plan.world) if self._takes_part(each, run)}
        missing = self._first(members, group.collect(absence() if group.rank in members else ""))
        if missing:
            return self._staged(asked, missing)
        missing = self._first(members, group.collect(self._open() if group.rank in members else ""))
        if missing:
            return self._staged(asked, missing)
        hosts = [each.host for each in self.plan.world]
        shared = run.transport.shared_memory == "auto" and asked in ("auto", "in_place")
        why = [] if run.transport.shared_memory == "auto" else ['transport.shared_memory = "off"']
        if shared and asked == "auto":
            tried = group.collect(self._try() if hosts.index(hosts[group.rank]) == group.rank else "")
            shared = not (failed := self._first(members, [tried[hosts.index(host)] for host in hosts]))
            why += [failed] * (not shared)
        mapped: dict[int, int] = {}
        if shared:
            mapped, missed = self._reach(members)
            why += [missed] if missed else []
        everyone = {rank: Peer(each.role, each.index) for rank, each in members.items()}
        direct = frozenset[int]()
        if asked == "direct" or (asked == "auto" and self.plan.device_memory == ACCEPTED):
            direct = frozenset(everyone) - mapped.keys()
        elif asked == "auto":
            why.append(self.plan.device_memory)
        # All processes must come to the same decision.
        usable = group.collect("x" if mapped or direct else "")
        if not any(usable):
            return self._staged(asked, "; ".join(why))
        if group.rank not in members:
            return Buffers("staged", f"{self.plan.world[group.rank].role} uses no device")
        assert self._device is not None, "it has been opened"
        if self._device.has_tensors and (reason := _on_host(run)):
            self._say(reason)
        link = DeviceLink(self._device, mapped, direct)
        named = [tuple(str(everyone[rank]) for rank in sorted(ranks)) for ranks in (mapped, direct - {group.rank})]
        found = {"in_place": "others map the memory of this device", "direct": "MPI takes the memory of this device"}
        mode = "in_place" if mapped else "direct" if direct else "staged"
        return Buffers(mode, found.get(mode, "; ".join(why)), link, named[0], named[1])

    def _takes_part(self, each: Rank, run: Run) -> bool:
        return each.role != "adversary" and Peer(each.role, each.index) in Roster.of(run).everyone()

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
        """Say something once in a launch; rank 0 does."""
        if self.group.rank == 0 and text not in self._said:
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

    def _try(self) -> str:
        """Return why processes of this host cannot read each other's device memory; a child finds out once."""
        if self._trial is None:
            self._trial = try_in_place()
        return self._trial

    def _reach(self, members: Iterable[int]) -> tuple[dict[int, int], str]:
        """Return the process ids of the ranks that this one reads and that read it, and what failed first.

        Each process stores a random token in its memory, and the others map and read it.
        """
        group, device = self.group, self._device
        mine: dict[str, str | int] = {}
        if group.rank in members and device is not None:
            with suppress(DeviceError):  # without memory nobody reaches it
                mine = self._card(device)
        cards = [json.loads(text) for text in group.collect(json.dumps(mine))]
        found: dict[int, int] = {}
        failed = ""
        for rank, card in enumerate(cards):
            if rank == group.rank or not mine or not card or card["host"] != mine["host"]:
                continue
            assert device is not None, "it has written a token"
            try:
                there = device.fetch(device.map(card["pid"], bytes.fromhex(card["address"])))
                if there.tobytes().hex() == card["token"]:
                    found[rank] = card["pid"]
                    continue
                failed = failed or f"{self.plan.world[group.rank]} reads wrong bytes of {self.plan.world[rank]}"
            except DeviceError as error:
                failed = failed or f"{self.plan.world[group.rank]} cannot map {self.plan.world[rank]}: {error}"
        reached = [json.loads(text) for text in group.collect(json.dumps([sorted(found), failed]))]
        mutual = {rank: pid for rank, pid in found.items() if group.rank in reached[rank][0]}
        # The memory of the tokens stays allocated in this run: nobody changes it before all have read it.
        return mutual, next((why for _, why in reached if why), "")

    @staticmethod
    def _card(device: Device) -> dict[str, str | int]:
        """Return how to reach a token in the memory of the device."""
        token = secrets.token_bytes(4 * _TOKEN)
        vector = device.allocate(_TOKEN)
        device.copy(np.frombuffer(token, np.float32), vector)
        device.finish()
        # Hosts and containers number their processes alike; without this file the token tells.
        host = socket.gethostname()
        with suppress(OSError):
            host += " " + os.readlink("/proc/self/ns/pid")
        return {"pid": os.getpid(), "address": device.export(vector).hex(), "token": token.hex(), "host": host}
