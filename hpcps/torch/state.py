"""The session of this process: how it begins, under `hpcps launch`, under torchrun or alone, and how it ends."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from hpcps.errors import LaunchError, RunError, message_of
from hpcps.protocol.messages import Peer
from hpcps.session.join import PLAN, ScriptEnding, join_launch, messages
from hpcps.session.member import RECENT, TIMEOUT
from hpcps.session.session import Session
from hpcps.torch.copies import TensorCopies
from hpcps.transport.shared_memory.process_group import SharedMemoryProcessGroup

_ELSEWHERE = "under torchrun, all processes must be on one host; on several hosts, start the script with `hpcps launch`"

_current: tuple[Session, ScriptEnding] | None = None
_asynchronous = _ended = False


def init(timeout: float = TIMEOUT, *, asynchronous: bool | None = None) -> None:
    """Join the other processes of the script; without effect if this process has joined them.

    The processes are those of `hpcps launch`, or those of torchrun on one host, or this one alone.

    Args:
        timeout: seconds in which the others must call `init`, and in which an exchange must end; the error says whom
            this process waited for.
        asynchronous: whether `DistributedOptimizer` pushes differences of weights and pulls the newest weights, without
            waiting for other processes; by default, whether BytePS's variable `BYTEPS_ENABLE_ASYNC` is set to 1.

    Raises:
        LaunchError: the processes cannot reach each other, or they have ended their session.
    """
    global _current, _asynchronous
    if _current is not None:
        return
    if _ended:
        raise LaunchError("init() after shutdown(): a script joins the other processes only once")
    _asynchronous = os.environ.get("BYTEPS_ENABLE_ASYNC") == "1" if asynchronous is None else asynchronous
    if os.environ.get(PLAN):
        session: Session = join_launch(timeout, TensorCopies())
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        session = _join_torchrun(timeout)
    else:
        session = _among([Peer("worker", 0)], 0, lambda mine: [mine], timeout)
    _current = session, ScriptEnding(session)


def shutdown() -> None:
    """End the session; returns when all processes have ended theirs. The end of a script does this by itself."""
    global _current, _ended
    if _current is not None:
        (session, ending), _current = _current, None
        _ended = session.size > 1 or PLAN in os.environ
        ending.shutdown()


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


@messages()
def _join_torchrun(timeout: float) -> Session:
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise LaunchError(
            f"WORLD_SIZE is set, but not {', '.join(missing)}: start the script with `hpcps launch` or torchrun"
        )
    limit = timedelta(seconds=timeout)
    try:
        found, mine, count = next(iter(rendezvous("env://", timeout=limit)))
    except RuntimeError as error:
        raise LaunchError(
            f"rank {os.environ['RANK']} has not reached the others in {timeout:g} s: {message_of(error)}"
        ) from error
    store, turn = PrefixStore("hpcps", found), iter(range(1 << 30))

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

    return _among([Peer("worker", k) for k in range(count)], mine, allgather, timeout)


def _is_set(store: PrefixStore, key: str) -> bool:
    """Return whether a key is set, as `Store.check` does, which torch 2.2 does not have."""
    try:
        store.wait([key], timedelta(seconds=1))
    except RuntimeError:
        return False
    return True


def _among(world: list[Peer], mine: int, allgather: object, timeout: float) -> Session:
    peers = {peer: number for number, peer in enumerate(world)}
    group = SharedMemoryProcessGroup(mine, peers, allgather, _ELSEWHERE)  # type: ignore[arg-type]
    session = Session(group, world, timeout, TensorCopies())
    session.begin()
    return session
