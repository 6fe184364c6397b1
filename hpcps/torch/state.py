"""The session of this process: which other processes it joins, and how it ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from hpcps.errors import LaunchError, RunError, message_of
from hpcps.launch.ancestry import JOINED, Ancestry, Task
from hpcps.launch.local_rank import OWN_RANK, PLAN
from hpcps.protocol.messages import Peer
from hpcps.session.join import INDEPENDENT, ScriptEnding, StepSession, join_launch, join_task, messages
from hpcps.session.member import RECENT, TIMEOUT
from hpcps.session.session import Session
from hpcps.torch.copies import TensorCopies
from hpcps.transport.shared_memory.process_group import SharedMemoryProcessGroup

_ELSEWHERE = (
    "on several hosts, start the script with `hpcps launch`, or with mpirun and as many tasks; under torchrun, all "
    "processes must be on one host"
)
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")

_current: tuple[Session, ScriptEnding] | None = None
_asynchronous = _ended = _alone = False


def init(timeout: float = TIMEOUT, *, asynchronous: bool | None = None, alone: bool = False) -> None:
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

    Raises:
        LaunchError: the processes cannot reach each other, they have ended their session, or there may be others of
            which this process does not know: a child of multiprocessing, of fork or of a process that has joined
            others must say to which it belongs.
    """
    global _current, _asynchronous, _alone
    if _current is not None:
        return
    if _ended:
        raise LaunchError("init() after shutdown(): a script joins the other processes only once")
    _asynchronous = os.environ.get("BYTEPS_ENABLE_ASYNC") == "1" if asynchronous is None else asynchronous
    _alone = alone
    session = _alone_session(timeout) if alone else _join(timeout)
    if isinstance(session, StepSession) or session.size > 1:
        os.environ[JOINED] = str(os.getpid())
    _current = session, ScriptEnding(session)


def shutdown() -> None:
    """End the session; returns when all processes have ended theirs. The end of a script does this by itself."""
    global _current, _ended
    if _current is not None:
        (session, ending), _current = _current, None
        _ended = isinstance(session, StepSession) or session.size > 1
        try:
            ending.shutdown()
        finally:
            if not _ended:  # others may still read the memory of this process
                session.leave()


def log(*, epoch: float | None = None, **numbers: Any) -> None:
    """Write numbers, such as `loss=0.3, accuracy=0.91`, into the record of the run, for plots and reports.

    The numbers are those of process 0: in the others, and without `hpcps launch`, this has no effect.

    Args:
        epoch: the finished epochs; by default, the number of this call, from 1.
        numbers: numbers or tensors with one element; `accuracy`, from 0 to 1, and `loss` on the test set are those that
            plots draw.
    """
    session().log(epoch, numbers)


def get_pushpull_speed() -> tuple[float, float]:
    """Return the time, in ms since 1970, and the MB/s that this process has exchanged in the last 10 seconds."""
    return 1e3 * time.time(), session().recent() / RECENT / 1e6


def session() -> Session:
    """Return the session of this process.

    Raises:
        RunError: there is none.
    """
    if _current is None:
        raise RunError("call hpcps.torch.init() first")
    return _current[0]


def is_asynchronous() -> bool:
    """Return whether `init` has chosen asynchronous training."""
    return _asynchronous


def is_initialized() -> bool:
    """Return whether this process has joined the others."""
    return _current is not None


def rank() -> int:
    """Return the number of this process, from 0."""
    return session().rank


def size() -> int:
    """Return the number of processes of the script."""
    return session().size


def local_rank() -> int:
    """Return the number of this process among those of its host."""
    return session().local_rank


def local_size() -> int:
    """Return the number of processes of the script on this host."""
    return session().local_size


def cross_rank() -> int:
    """Return the number of this host among those that have a process with this `local_rank`."""
    return session().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process with this `local_rank`."""
    return session().cross_size


def is_homogeneous() -> bool:
    """Return whether each host has the same number of processes."""
    return session().homogeneous


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
    if ancestry.parent is not None:
        raise LaunchError(
            f"{ancestry.relation}, and nothing says to which others it belongs: call init() after "
            "torch.distributed.init_process_group(), or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for it; "
            f"{INDEPENDENT}"
        )
    return _alone_session(timeout)


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
        return _alone_session(timeout)
    # torchrun keeps the store, with what processes have written to it before a restart.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    allgather = _allgather(PrefixStore(f"hpcps/{attempt}", store), mine, count, timeout)
    same = task is not None and task.rank == mine and task.size in (count, None)
    found = [each.decode().split() for each in allgather(f"{socket.gethostname()} {same}".encode())]
    if task is not None and len({host for host, _ in found}) > 1 and all(each == "True" for _, each in found):
        return join_task(task, timeout, TensorCopies())
    return _among(mine, count, allgather, timeout)


def _allgather(store: PrefixStore, mine: int, count: int, timeout: float) -> Callable[[bytes], list[bytes]]:
    limit, turn = timedelta(seconds=timeout), iter(range(1 << 30))

    def allgather(payload: bytes) -> list[bytes]:
        prefix = next(turn)
        store.set(f"{prefix}/{mine}", payload)  # type: ignore[arg-type]  # it takes bytes too
        keys = [f"{prefix}/{rank}" for rank in range(count)]
        try:
            store.wait(keys, limit)
        except RuntimeError as error:
            missing = ", ".join(f"worker-{rank}" for rank in range(count) if not _is_set(store, keys[rank]))
            raise LaunchError(f"worker-{mine} waited {timeout:g} s for {missing} to call init()") from error
        return [store.get(key) for key in keys]

    return allgather


def _is_set(store: PrefixStore, key: str) -> bool:
    """Return whether a key is set, as `Store.check` does, which torch 2.2 does not have."""
    try:
        store.wait([key], timedelta(seconds=1))
    except RuntimeError:
        return False
    return True


def _alone_session(timeout: float) -> Session:
    return _among(0, 1, lambda mine: [mine], timeout)


def _among(mine: int, count: int, allgather: Callable[[bytes], list[bytes]], timeout: float) -> Session:
    world = [Peer("worker", k) for k in range(count)]
    group = SharedMemoryProcessGroup(mine, {peer: k for k, peer in enumerate(world)}, allgather, _ELSEWHERE)
    session = Session(group, world, timeout, TensorCopies())
    session.begin()
    return session
