"""Place roles on hosts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.errors import LaunchError
from hpcps.launch.batch import PBS_HOSTS, own_gpus
from hpcps.launch.hostfile import Host
from hpcps.launch.local_rank import TRAINING
from hpcps.launch.losses import size_of
from hpcps.launch.plan import Rank

# A host and the number of one of its slots, from 0.
_Slot = tuple[Host, int]

if TYPE_CHECKING:
    from hpcps.spec.schema import Run, Topology


def place(
    topology: Topology,
    hosts: Sequence[Host] | None = None,
    source: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    adversary: bool = False,
    standbys: bool = False,
) -> tuple[Rank, ...]:
    """Assign a host, a GPU (if the hosts have GPUs) and a rank to every role.

    Workers are placed first, then validators, servers, the adversary, the evaluator and standbys: round-robin over the
    hosts, as long as a host has a free slot. A standby gets a slot of another host than its server, if one is free. A
    validator that is colocated with its server shares the slot of the server, and the GPU if that slot has its own.
    Ranks are numbered host by host, in the same order of roles on each host, so that the ranks of a host are
    consecutive: some launchers cannot return to a host.

    Args:
        topology: the number of each role.
        hosts: the hosts; None to run everything on this machine, with as many slots as needed.
        source: the file that lists the hosts, for the message.
        environment: the variables of a batch system, for the message, and of the GPUs of this machine.
        adversary: whether the run has an adversary.
        standbys: whether each server has a standby.

    Raises:
        LaunchError: there are too few slots; the message says how many are missing.
    """
    roles = {"worker": topology.workers, "validator": topology.validators, "server": topology.servers}
    roles |= {"adversary": int(adversary), "evaluator": topology.evaluators}
    roles |= {"standby": topology.servers * standbys}
    separate = topology.validators
    if topology.colocate_validators:
        separate = max(0, topology.validators - topology.servers)
    shared = topology.validators - separate
    needed = sum(roles.values()) - shared
    if hosts is None:
        hosts = own_gpus((Host("localhost", needed),), environment)
    if sum(host.slots for host in hosts) < needed:
        names = ", ".join(f"{count} {role}{'s' * (count != 1)}" for role, count in roles.items() if count)
        sharing = " (a colocated validator shares its server's)" if topology.colocate_validators else ""
        raise _too_few_slots(f"{names} need {needed} slots{sharing}", needed, hosts, source, environment)
    slots = _slots(hosts)
    placed: dict[tuple[str, int], _Slot] = {}
    for k in range(topology.workers):
        placed["worker", k] = next(slots)
    for v in range(shared, topology.validators):
        placed["validator", v] = next(slots)
    for s in range(topology.servers):
        placed["server", s] = next(slots)
        if s < shared:
            placed["validator", s] = placed["server", s]
    if adversary:
        placed["adversary", 0] = next(slots)
    if topology.evaluators:
        placed["evaluator", 0] = next(slots)
    left = list(slots)
    for s in range(topology.servers * standbys):
        elsewhere = (place for place, slot in enumerate(left) if slot[0] is not placed["server", s][0])
        placed["standby", s] = left.pop(next(elsewhere, 0))
    return _number(hosts, placed)


def place_others(world: Sequence[Rank], workers: int, servers: int, hosts: Sequence[Host]) -> tuple[Rank, ...]:
    """Place other numbers of the workers and servers of a script.

    Those that stay, the first of each role, keep their hosts and GPUs, and so does the further role of the transport.
    Others get the next free slots, round-robin as at the start, and the GPU of the host that fewest others use.

    Args:
        world: the processes before, by rank.
        workers: the number of workers.
        servers: the number of servers.
        hosts: the hosts of the launch.

    Raises:
        LaunchError: there are too few slots; the message says how many are missing.
    """
    wanted = [*(("worker", k) for k in range(workers)), *(("server", k) for k in range(servers))]
    if sum(host.slots for host in hosts) < len(wanted):
        names = size_of(workers, servers)
        raise _too_few_slots(f"{names} need {len(wanted)} slots", len(wanted), hosts, None, os.environ)
    placed = {key: rank for rank in world if (key := (rank.role, rank.index)) in wanted}
    taken = Counter(rank.host for rank in placed.values())
    free = (host for host, turn in _slots(hosts) if turn >= taken[host.name])
    for role, index in wanted:
        if (role, index) not in placed:
            host = next(free)
            here = [rank for rank in placed.values() if rank.host == host.name]
            placed[role, index] = Rank(0, role, index, host.name, *_gpu_beside(host, here))
    ordered = [rank for host in hosts for key in wanted if (rank := placed[key]).host == host.name]
    others = tuple(replace(rank, rank=number) for number, rank in enumerate(ordered))
    further = next((rank.role for rank in world if rank.role not in ("worker", "server")), "")
    return with_further(further, others) if further else others


def _gpu_beside(host: Host, others: Sequence[Rank]) -> tuple[str | None, int | None]:
    """Return the id and the position of the GPU of another process of a host, as far as the host has them."""
    if host.slot_gpus:
        left = [*host.slot_gpus]
        for rank in others:
            if rank.gpu in left:
                left.remove(rank.gpu)
        return left[0], None
    if host.gpus:
        used = Counter(rank.gpu for rank in others)
        return min(host.gpus, key=lambda gpu: used[gpu]), None
    positions = Counter(rank.gpu_index for rank in others)
    return None, min(range(host.gpu_count), key=lambda position: positions[position], default=None)


def gpu_assignment(runs: Iterable[Run], hosts: Sequence[Host]) -> list[str]:
    """Return a line for each host of the first run that may train on GPUs: which process gets which GPU.

    Args:
        runs: the runs of an experiment.
        hosts: the hosts of the batch job; empty outside of a job, for this machine.

    Returns:
        The lines; none if no run may train on GPUs, no GPU is known, or the hosts have too few slots.
    """
    run = next((run for run in runs if run.train.device != "cpu" and not run.transport.in_process), None)
    if run is None:
        return []
    try:
        world = place(run.topology, hosts or None, adversary=run.has_adversary, standbys=run.survive.servers)
    except LaunchError:
        return []
    lines = []
    for host, ranks in groupby(world, lambda rank: rank.host):
        gets = [
            f"{rank} GPU {rank.gpu}" if rank.gpu is not None else f"{rank} visible GPU {rank.gpu_index}"
            for rank in ranks
            if rank.role in TRAINING and (rank.gpu, rank.gpu_index) != (None, None)
        ]
        lines += [f"{host}: {', '.join(gets)}"] if gets else []
    return lines


def most_on_a_host(run: Run, hosts: Sequence[Host]) -> int:
    """Return the largest number of processes that a run has on one host; without hosts, or enough slots, all."""
    if hosts and not run.transport.in_process:
        with suppress(LaunchError):
            world = place(run.topology, hosts, adversary=run.has_adversary, standbys=run.survive.servers)
            return max(Counter(rank.host for rank in world).values())
    return run.processes


def with_further(role: str, world: Sequence[Rank]) -> tuple[Rank, ...]:
    """Add the further role of a transport, such as ps-lite's scheduler, as the last rank of the first host.

    It is a separate process, which uses hardly any CPU time and needs no slot. It therefore outlives every role of the
    run and can report which one was lost, and the launch ends if this process ends.
    """
    here = sum(rank.host == world[0].host for rank in world)
    further = Rank(here, role, 0, world[0].host)
    return (*world[:here], further, *(replace(rank, rank=rank.rank + 1) for rank in world[here:]))


def _too_few_slots(
    demand: str, needed: int, hosts: Sequence[Host], source: Path | None, environment: Mapping[str, str]
) -> LaunchError:
    there = sum(host.slots for host in hosts)
    return LaunchError(
        f"{demand}, {source or 'the hosts'} "
        f"{'has' if source else 'have'} {there} on {len(hosts)} host{'s' * (len(hosts) != 1)}: {needed - there} "
        f"{'is' if needed - there == 1 else 'are'} missing; {_cure(needed, hosts, source, environment)}"
    )


def _cure(needed: int, hosts: Sequence[Host], source: Path | None, environment: Mapping[str, str]) -> str:
    if source is not None and str(source) == environment.get(PBS_HOSTS):
        # Nobody can edit this file: PBS writes a line for each MPI process that a chunk of the job has.
        each = -(-needed // len(hosts))
        return (
            f"a chunk of a PBS job has `mpiprocs` slots, 1 by default: request `mpiprocs={each}` in each, such as "
            f"`qsub -l select={len(hosts)}:ncpus={each}:mpiprocs={each}`, or more chunks"
        )
    first, missing = hosts[0], needed - sum(host.slots for host in hosts)
    return f"add hosts, or slots to a host (`{first.name} slots={first.slots + missing}`)"


def _slots(hosts: Sequence[Host]) -> Iterator[_Slot]:
    """Yield every slot of every host: the first of each, then the second of each that has one, and so on."""
    for turn in range(max(host.slots for host in hosts)):
        yield from ((host, turn) for host in hosts if turn < host.slots)


def _number(hosts: Sequence[Host], placed: dict[tuple[str, int], _Slot]) -> tuple[Rank, ...]:
    order = ("worker", "validator", "server", "adversary", "evaluator", "standby")
    world: list[Rank] = []
    for host in hosts:
        slots = {key: slot for key, (home, slot) in placed.items() if home is host}
        here = sorted(slots, key=lambda key: (order.index(key[0]), key[1]))
        for number, (role, index) in enumerate(here):
            gpu = host.gpus[number % len(host.gpus)] if host.gpus else None
            if host.slot_gpus:
                gpu = host.slot_gpus[slots[role, index]]
            position = number % host.gpu_count if host.gpu_count and not host.gpus else None
            world.append(Rank(len(world), role, index, host.name, gpu, position))
    return tuple(world)
