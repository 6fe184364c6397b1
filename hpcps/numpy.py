"""The exchange of hpcps for scripts whose tensors are arrays of numpy, or what numpy makes arrays of.

`push_pull` combines the arrays of all processes, by the mean, the sum or a rule, as `hpcps.torch` does: to the same
bits. `hpcps launch -n 4 python train.py` or `mpirun -n 4` starts a script; docs/how-to/own-script.md shows both.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, NDArray

from hpcps.session.arrays import ArrayExchanges, Compressing
from hpcps.session.current import (
    cross_rank,
    cross_size,
    get_pushpull_speed,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    log,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from hpcps.session.member import TIMEOUT
from hpcps.session.pending import kept, poll, synchronize

__all__ = [
    "broadcast",
    "broadcast_async",
    "cross_rank",
    "cross_size",
    "get_pushpull_speed",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "log",
    "poll",
    "push_pull",
    "push_pull_async",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
    "synchronize",
]

_ARRAYS = ArrayExchanges("hpcps.numpy")


def init(timeout: float = TIMEOUT, *, alone: bool = False, credit: int | None = None) -> None:
    """Join the other processes of the script; without effect if this process has joined them.

    The processes are the first of these that there are: those of `hpcps launch`; the tasks of `mpirun`, `mpiexec` or
    `srun`, through MPI; this one alone.

    Args:
        timeout: seconds in which the others must call `init`, and in which an exchange must end; the error says whom
            this process waited for.
        alone: whether this process exchanges nothing, although a launcher may know of others.
        credit: the bytes of large arrays that this process has on their way to other hosts at a time, from one
            partition, 786432; further ones wait, the most urgent first. 0: no bound. By default the number of
            partitions in BytePS's variable `BYTEPS_SCHEDULING_CREDIT`, which servers read too, or two.

    Raises:
        SpecError: `credit` or the variable cannot be used.
        LaunchError: the processes cannot reach each other, they have ended their session, or there may be others of
            which this process does not know.
        RunError: this process has joined them with another front end.
    """
    _ARRAYS.init(timeout, alone, credit)


def push_pull(
    array: ArrayLike,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    compression: Compressing = None,
    rule: object = None,
) -> NDArray[Any]:
    """Return the mean or sum of the arrays that all processes give under the same name, or what a rule makes of them.

    Args:
        array: an array, or what numpy makes one of; of the same type and shape in all processes.
        average: whether to return the mean, else the sum; the mean is for floats.
        name: the name of the array in all processes; None: a name from its type and shape. Without names, all processes
            must begin and synchronize exchanges of one type and shape in the same order.
        priority: how urgent it is: an array of more than 64 KB that waits for the network is overtaken by those with
            larger numbers. It may differ between calls and between processes.
        compression: a compressor of hpcps, see `Compressing`.
        rule: a rule of hpcps in place of the mean: its name, its table, such as `{"kind": "trimmed_mean", "f": 1}`, or
            an object. It combines in float32, and counts values that are not finite as zero.

    Returns:
        A new array.

    Raises:
        SpecError: the array or the rule cannot be used.
        RunError: the processes give different arrays, or one of them has ended; the message names it and the array.
    """
    return _ARRAYS.push_pull(array, average, name, rule, compression, priority).finish()


def push_pull_async(
    array: ArrayLike,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    compression: Compressing = None,
    rule: object = None,
) -> int:
    """Begin a `push_pull`; return a handle for `synchronize` and `poll`. The array may be changed at once."""
    return kept(_ARRAYS.push_pull(array, average, name, rule, compression, priority))


def broadcast(array: ArrayLike, root_rank: int = 0, name: str | None = None) -> NDArray[Any]:
    """Return the array of one process in all processes.

    Args:
        array: an array of any type without objects; of the same type and shape in all processes.
        root_rank: the process whose array all get.
        name: the name of the array in all processes; see `push_pull`.

    Returns:
        A new array.

    Raises:
        SpecError: there is no such process, or the array cannot be exchanged.
        RunError: the processes give other types, shapes or root ranks.
    """
    return _ARRAYS.broadcast(array, root_rank, name).finish()


def broadcast_async(array: ArrayLike, root_rank: int = 0, name: str | None = None) -> int:
    """Begin a `broadcast`; return a handle for `synchronize` and `poll`."""
    return kept(_ARRAYS.broadcast(array, root_rank, name))
