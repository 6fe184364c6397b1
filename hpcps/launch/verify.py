"""Check that this process has the rank, role and host of the plan.

A launcher that places ranks wrongly prints no error and exits with status 0.
"""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache

from hpcps.launch.plan import Plan


def problems(plan: Plan, rank: int, size: int, role: str, host: str) -> list[str]:
    """Compare the rank, role and host of this process with the plan; return a message for each difference.

    Args:
        plan: the plan of the launch.
        rank: the rank of this process in MPI's world.
        size: the size of that world.
        role: the role that the configfile gives this process; empty if the configfile leaves it to the plan.
        host: the name of the machine that the process runs on.
    """
    if size != len(plan.world):
        what = f"MPI started a world of {size}, the plan has {len(plan.world)} processes"
        if size == 1:
            what += "; is the `mpirun` of another MPI, or a configfile of another dialect, in use? Or does srun need "
            what += "another --mpi?"
        return [what]
    planned = plan.world[rank]
    found = []
    if role and role != planned.role:
        found.append(f"rank {rank} was started as a {role}, the plan has {planned} there")
    if not same_host(planned.host, host):
        found.append(f"rank {rank} ({planned}) runs on {host}, the plan has it on {planned.host}")
    return found


def same_host(planned: str, actual: str) -> bool:
    """Whether a host of the plan is this machine, whose own name is `actual`.

    A name matches with and without its domain. An address or an alias matches if it resolves to an address of this
    machine.
    """
    if planned == actual or planned == "localhost":
        return True
    if not _is_address(planned):
        short, _, domain = planned.lower().partition(".")
        own_short, _, own_domain = actual.lower().partition(".")
        if short == own_short and (not domain or not own_domain or domain == own_domain):
            return True
    return any(_is_local(address) for address in _addresses(planned))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@lru_cache
def _addresses(name: str) -> tuple[str, ...]:
    try:
        return tuple({str(info[4][0]) for info in socket.getaddrinfo(name, None)})
    except OSError:
        return ()


def _is_local(address: str) -> bool:
    """Whether an address belongs to this machine. A socket can be bound only to such an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
