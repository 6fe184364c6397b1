"""Which role goes on which host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.errors import LaunchError
from hpcps.launch.hostfile import Host
from hpcps.launch.plan import Rank

# A slot of a host, counted from 0.
_Seat = tuple[Host, int]

if TYPE_CHECKING:
    from hpcps.spec.schema import Topology


def place(topology: Topology, hosts: Sequence[Host] | None = None, source: Path | None = None) -> tuple[Rank, ...]:
    """Give every role a host, a GPU if there are any, and a rank.

    Roles are placed in the order workers, validators, servers: one on each host while hosts last, then round again
    within their slots. A validator colocated with its server shares the server's slot, and the GPU of that slot if it
    has one of its own. Ranks are numbered host by host, in that order on each, so that a host is one piece of the
    world: no launcher is asked to come back to a host.

    Args:
        topology: how many of each role.
        hosts: where to; without any, everything runs on this machine, which takes as many as there are.
        source: the file that the hosts come from, for the message.

    Raises:
        LaunchError: there are too few slots; the message says how many are missing.
    """
    alone = topology.validators
    if topology.colocate_validators:
        alone = max(0, topology.validators - topology.servers)
    needed = topology.workers + alone + topology.servers
    if hosts is None:
        hosts = (Host("localhost", needed),)
    _check_room(topology, needed, hosts, source)
    seats = _seats(hosts)
    homes: dict[tuple[str, int], _Seat] = {}
    for k in range(topology.workers):
        homes["worker", k] = next(seats)
    shared = topology.validators - alone
    for v in range(shared, topology.validators):
        homes["validator", v] = next(seats)
    for s in range(topology.servers):
        homes["server", s] = next(seats)
        if s < shared:
            homes["validator", s] = homes["server", s]
    return _number(hosts, homes)


def with_scheduler(world: Sequence[Rank]) -> tuple[Rank, ...]:
    """Add the process through which ps-lite nodes meet; behind the others of the first host, where it takes no slot.

    It is a process of its own, so that it outlives any role to say which one was lost, and ends the launch if it dies
    itself; it hardly does anything.
    """
    here = sum(rank.host == world[0].host for rank in world)
    scheduler = Rank(here, "scheduler", 0, world[0].host)
    return (*world[:here], scheduler, *(replace(rank, rank=rank.rank + 1) for rank in world[here:]))


def _check_room(topology: Topology, needed: int, hosts: Sequence[Host], source: Path | None) -> None:
    there = sum(host.slots for host in hosts)
    if there >= needed:
        return
    roles = {"worker": topology.workers, "validator": topology.validators, "server": topology.servers}
    names = ", ".join(f"{count} {role}{'s' * (count != 1)}" for role, count in roles.items() if count)
    shared = " (a colocated validator shares its server's)" if topology.colocate_validators else ""
    raise LaunchError(
        f"{names} need {needed} slots{shared}, {source or 'the hosts'} "
        f"{'has' if source else 'have'} {there} on {len(hosts)} host{'s' * (len(hosts) != 1)}: {needed - there} "
        f"{'is' if needed - there == 1 else 'are'} missing; add hosts, or slots to a host (`{hosts[0].name} slots="
        f"{hosts[0].slots + needed - there}`)"
    )


def _seats(hosts: Sequence[Host]) -> Iterator[_Seat]:
    """Every slot of every host: the first of each, then the second of each that has one, and so on."""
    for turn in range(max(host.slots for host in hosts)):
        yield from ((host, turn) for host in hosts if turn < host.slots)


def _number(hosts: Sequence[Host], homes: dict[tuple[str, int], _Seat]) -> tuple[Rank, ...]:
    order = ("worker", "validator", "server")
    world: list[Rank] = []
    for host in hosts:
        mine = {key: slot for key, (home, slot) in homes.items() if home is host}
        here = sorted(mine, key=lambda key: (order.index(key[0]), key[1]))
        for place, (role, index) in enumerate(here):
            gpu = host.gpus[place % len(host.gpus)] if host.gpus else None
            if host.slot_gpus:
                gpu = host.slot_gpus[mine[role, index]]
            world.append(Rank(len(world), role, index, host.name, gpu))
    return tuple(world)
