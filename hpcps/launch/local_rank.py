"""A process and its entry in the plan: its rank, GPU and node before MPI starts, a check of its rank, role and host.

A launcher that places ranks wrongly prints no error and exits with status 0.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from pathlib import Path

from hpcps.inputs import whole_number
from hpcps.launch.limits import bind, numa_nodes
from hpcps.launch.plan import Plan, Rank

OWN_RANK = "HPCPS_RANK"
"""The variable in which our own starter, or a user, sets the rank.

A process of a script that survives lost processes has its name in it, such as `worker-3`: a resize changes ranks.
"""

INCARNATION = "HPCPS_INCARNATION"
"""The variable in which our own starter says how many processes had this rank before, if some had."""

PLAN = "HPCPS_PLAN"
"""The variable with the path of the plan, which `hpcps launch` sets for a person's own script."""

TRAINING = ("worker", "validator", "evaluator")
"""The roles that train or evaluate, on a GPU if there is one."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable with the ids of the GPUs that CUDA shows to a process."""

DRIVER = "/dev/nvidiactl"
"""The device file that exists on every machine with NVIDIA's driver."""


def planned_rank(plan: Plan, environment: MutableMapping[str, str] = os.environ) -> Rank | None:
    """Return the entry of this process in the plan, or None if the launcher sets no rank or an invalid one."""
    for variable in (OWN_RANK, *plan.rank_variables):
        text = environment.get(variable, "")
        if text.isascii() and text.isdigit():
            number = whole_number(text, 0, len(plan.world) - 1)
            return None if number is None else plan.world[number]
        if (named := next((rank for rank in plan.world if str(rank) == text), None)) is not None:
            return named
    return None


def variables_of_worker(plan: Plan, me: Rank) -> dict[str, str]:
    """Return the variables of a worker of a script, as torchrun sets them."""
    assert plan.script is not None, "the launch is that of a script"
    workers = [rank for rank in plan.world if rank.role == "worker"]
    here = [rank.index for rank in workers if rank.host == me.host]
    first = min(workers, key=lambda rank: rank.index)
    return {
        "RANK": str(me.index),
        "WORLD_SIZE": str(len(workers)),
        "LOCAL_RANK": str(here.index(me.index)),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "MASTER_ADDR": "127.0.0.1" if first.host == "localhost" else first.host,
        "MASTER_PORT": str(plan.script.port),
    }


def close_input() -> None:
    """Let the standard input of this process be empty.

    Launchers forward theirs to rank 0, and it is empty under `hpcps`; the others would wait for it without end, and so
    does rank 0 of Open MPI 5, which does not forward the end of /dev/null.
    """
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    if empty:
        os.close(empty)


def preset_gpu(plan: Plan, environment: MutableMapping[str, str] = os.environ) -> None:
    """Make only the planned GPU visible to this process; call this before MPI and the framework are imported.

    The configfile cannot choose the GPU, because all ranks of a segment have the same command line.
    """
    rank = planned_rank(plan, environment)
    if rank is not None and (gpu := gpu_of(rank, environment)) is not None:
        environment[VISIBLE] = gpu


def bind_to_node(plan: Plan, rank: Rank) -> None:
    """Bind this process to a NUMA node if the plan says so; call this before any thread is started.

    The process itself does this, because it is the same under all launchers, which leave the processes unbound. The
    workers and servers of a host use its nodes in turn.

    Raises:
        LaunchError: this system cannot do it.
    """
    here = [member for member in plan.world if member.host == rank.host and member.role in ("worker", "server")]
    if plan.script is not None and plan.script.bind and rank in here:
        nodes = numa_nodes()
        bind(nodes[here.index(rank) % len(nodes)])


def gpu_of(rank: Rank, environment: Mapping[str, str]) -> str | None:
    """Return the id of the GPU of a process of this host; None if the plan gives it none.

    Args:
        rank: the process.
        environment: the variables of a process of this host, before `preset_gpu`: a batch system may say in them which
            GPUs of the host the job has.
    """
    if rank.gpu is not None or rank.gpu_index is None:
        return rank.gpu
    visible = environment.get(VISIBLE, "")
    ids = visible.split(",") if visible else [str(rank.gpu_index)]
    return ids[rank.gpu_index % len(ids)]


def share_gpu(
    plan: Plan, plan_file: Path, environment: MutableMapping[str, str] = os.environ
) -> tuple[bool, Path | None]:
    """Make this process use its GPU through MPS if it shares the GPU; call this before `preset_gpu` and the guard.

    Returns:
        Whether it uses MPS, and the folder of the MPS daemon that its guard has to stop.
    """
    me = planned_rank(plan, environment)
    here = gpu_users(plan, me, environment) if me and os.path.exists(DRIVER) else {}
    if me not in here or len(set(here.values())) == len(here):
        return False, None
    from hpcps.launch.mps import share  # here, because its imports take 10 ms

    return share(list(here.values()), me is next(iter(here)), plan_file, environment)


def gpu_users(plan: Plan, me: Rank, environment: Mapping[str, str]) -> dict[Rank, str]:
    """Return the GPU of each process of this host that uses one; the first visible one if the plan does not name it.

    A server uses a GPU if updates may stay in its memory. The plan is read without the schema, whose import takes long.
    """
    trains = [run.spec["run"]["train"] for run in plan.runs]
    if all(train["device"] == "cpu" for train in trains) or any(train["mps"] == "off" for train in trains):
        return {}
    first = environment.get(VISIBLE, "0").split(",")[0]
    buffers = {run.spec["run"].get("transport", {}).get("device_buffers", "staged") for run in plan.runs}
    roles = (*TRAINING, *(() if buffers <= {"staged"} else ("server",)))
    here = [member for member in plan.world if member.host == me.host and member.role in roles]
    found = {member: gpu_of(member, environment) for member in here}
    gpus = {member: first if gpu is None else gpu for member, gpu in found.items()}
    return {member: gpu for member, gpu in gpus.items() if gpu not in ("", "-1", "NoDevFiles")}


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
    spares = plan.spares if rank in plan.replaceable else ()
    if not any(same_host(name, host) for name in (planned.host, *spares)):
        found.append(f"rank {rank} ({planned}) runs on {host}, the plan has it on {planned.host}")
    return found


def same_host(planned: str, actual: str) -> bool:
    """Whether a host of the plan is this machine, whose own name is `actual`.

    A name matches with and without its domain. An address or an alias matches if it resolves to an address of this
    machine.
    """
    if planned == "localhost" or same_name(planned, actual):
        return True
    return any(_is_local(address) for address in _addresses(planned))


def same_name(name: str, other: str) -> bool:
    """Whether two names are of one host: they are equal, or one of them has the domain that the other lacks."""
    if _is_address(name) or _is_address(other):
        return name == other
    short, _, domain = name.lower().partition(".")
    other_short, _, other_domain = other.lower().partition(".")
    return short == other_short and (not domain or not other_domain or domain == other_domain)


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
