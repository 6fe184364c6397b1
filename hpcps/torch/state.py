"""Which other processes a script of PyTorch joins."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from hpcps.errors import LaunchError, RunError, message_of
from hpcps.launch.ancestry import Ancestry, Task
from hpcps.launch.local_rank import OWN_RANK, PLAN
from hpcps.session.current import begin, is_initialized, session
from hpcps.session.join import INDEPENDENT, join_in_memory, join_launch, join_nobody, join_task, messages
from hpcps.session.member import TIMEOUT
from hpcps.session.session import Session
from hpcps.torch.compatibility import refuses_absent_arguments
from hpcps.torch.copies import TensorCopies

_ELSEWHERE = (
    "on several hosts, start the script with `hpcps launch`, or with mpirun and as many tasks; under torchrun, all "
    "processes must be on one host"
)
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")

FRONT_END = "hpcps.torch"

_asynchronous = _alone = False


@refuses_absent_arguments
def init(
    timeout: float = TIMEOUT, *, asynchronous: bool | None = None, alone: bool = False, credit: int | None = None
) -> None:
    """Join the other processes of the script; without effect if this process has joined them.

    The processes are the first of these that there are: those of `hpcps launch`; those of `torch.distributed` if it is
    initialised; those of torchrun; the tasks of `mpirun`, `mpiexec` or `srun`, through MPI; this one alone. Those of
    torch must be on one host, unless they are the tasks of a launcher of MPI too.

    Args:
        timeout: seconds in which the others must call `init`, and in which an exchange must end; the error says whom
            this process waited for.
        asynchronous: whether `DistributedOptimizer` pushes differences of weights and pulls the newest weights, without
            waiting for other processes; by default, whether BytePS's variable `BYTEPS_ENABLE_ASYNC` is set to 1.
        alone: whether this process exchanges nothing, although a launcher or torch may know of others.
        credit: the bytes of large tensors that this process has on their way to other hosts at a time, from one
            partition, 786432; further ones wait, the most urgent first. 0: no bound. By default the number of
            partitions in BytePS's variable `BYTEPS_SCHEDULING_CREDIT`, which servers read too, or two.

    Raises:
        SpecError: `timeout`, `credit` or the variable cannot be used.
        LaunchError: the processes cannot reach each other, they have ended their session, or there may be others of
            which this process does not know: a child of multiprocessing, of fork or of a process that has joined
            others must say to which it belongs.
    """
    global _asynchronous, _alone
    if not is_initialized():
        _asynchronous = os.environ.get("BYTEPS_ENABLE_ASYNC") == "1" if asynchronous is None else asynchronous
        _alone = alone
    begin(FRONT_END, timeout, lambda limit: join_nobody(limit, TensorCopies()) if alone else _join(limit), credit)


def is_asynchronous() -> bool:
    """Return whether `init` has chosen asynchronous training."""
    return _asynchronous


def check_world(size: int | None = None, of: str = "torch.distributed", remedy: str = "") -> None:
    """Check that the session has all processes with which torch trains.

    Args:
        size: their number; by default, that of `torch.distributed`, if it is initialised and this process has not
            chosen to be alone.
        of: what has so many processes, for the message.
        remedy: what else to do than to join others.

    Raises:
        RunError: there are more or fewer; the session ends.
    """
    if size is None:
        size = dist.get_world_size() if dist.is_initialized() and not _alone else session().size
    if size != session().size:
        error = RunError(
            f"the size of {of} is {size}, and the number of processes that init() has joined is {session().size}: "
            f"{remedy}call init() after torch.distributed.init_process_group(), or start the script with `hpcps "
            "launch` or torchrun"
        )
        session().fail(error)
        raise error


@messages()
def _join(timeout: float) -> Session:
    ancestry = Ancestry()
    torchrun = ancestry.own(_TORCHRUN)
    elastic = "TORCHELASTIC_RUN_ID" in torchrun
    # `hpcps launch` removes the variables of torchrun: these are of a torchrun that the script has started.
    if PLAN in ancestry.own([PLAN, OWN_RANK]) and not elastic:
        return join_launch(timeout, TensorCopies())
    task = ancestry.task()
    if dist.is_initialized() and dist.get_backend() != "mpi":
        return _join_group(_get_default_store(), dist.get_rank(), dist.get_world_size(), timeout, task)
    if elastic or torchrun.get("WORLD_SIZE", "1") != "1":
        return _join_torchrun(timeout, task)
    if task is not None:
        return join_task(task, timeout, TensorCopies())
    if ancestry.parent is not None and "WORLD_SIZE" not in torchrun:  # else it is the only one, as WORLD_SIZE says
        raise LaunchError(
            f"{ancestry.relation}, and nothing says to which others it belongs: call init() after "
            "torch.distributed.init_process_group(), or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for it; "
            f"{INDEPENDENT}"
        )
    return join_nobody(timeout, TensorCopies())


def _join_torchrun(timeout: float, task: Task | None) -> Session:
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise LaunchError(
            f"WORLD_SIZE is set, but not {', '.join(missing)}: start the script with `hpcps launch` or torchrun, or "
            "call init() after torch.distributed.init_process_group()"
        )
    try:
        store, mine, count = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout))))
    except RuntimeError as error:
        raise LaunchError(
            f"rank {os.environ['RANK']} has not reached the others in {timeout:g} s: {message_of(error)}"
        ) from error
    return _join_group(store, mine, count, timeout, task)


def _join_group(store: Store, mine: int, count: int, timeout: float, task: Task | None) -> Session:
    """Join the processes that share a store of torch, of which this one has the number `mine`."""
    if count == 1:
        return join_nobody(timeout, TensorCopies())
    # torchrun keeps the store, with what processes have written to it before a restart.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    allgather = _allgather(PrefixStore(f"hpcps/{attempt}", store), mine, count, timeout)
    same = task is not None and task.rank == mine and task.size in (count, None)
    found = [each.decode().split() for each in allgather(f"{socket.gethostname()} {same}".encode())]
    if task is not None and len({host for host, _ in found}) > 1 and all(each == "True" for _, each in found):
        return join_task(task, timeout, TensorCopies())
    return join_in_memory(mine, count, allgather, timeout, TensorCopies(), _ELSEWHERE)


def _allgather(store: PrefixStore, mine: int, count: int, timeout: float) -> Callable[[bytes], list[bytes]]:
    limit, turn = timedelta(seconds=timeout), iter(range(1 << 30))

    def allgather(payload: bytes) -> list[bytes]:
        prefix = next(turn)
        store.set(f"{prefix}/{mine}", payload)  # type: ignore[arg-type]  # it takes bytes too
        keys = [f"{prefix}/{rank}" for rank in range(count)]
        try:
            store.wait(keys, limit)
        except RuntimeError as error:
            missing = ", ".join(f"worker-{rank}" for rank in range(count) if not store.check([keys[rank]]))
            raise LaunchError(f"worker-{mine} waited {timeout:g} s for {missing} to call init()") from error
        return [store.get(key) for key in keys]

    return allgather
