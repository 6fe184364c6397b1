"""The exchange of hpcps for scripts whose tensors are arrays of numpy, or what numpy makes arrays of.

`push_pull` combines the arrays of all processes, by the mean, the sum or a rule, as `hpcps.torch` does: to the same
bits. `hpcps launch -n 4 python train.py` or `mpirun -n 4` starts a script; docs/how-to/own-script.md shows both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcps.errors import LaunchError, SpecError
from hpcps.launch.ancestry import Ancestry
from hpcps.launch.local_rank import OWN_RANK, PLAN
from hpcps.registry import Config
from hpcps.session.current import (
    begin,
    check_front_end,
    checked_rank,
    cross_rank,
    cross_size,
    get_pushpull_speed,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    log,
    rank,
    session,
    shutdown,
    size,
)
from hpcps.session.elements import COPIED, TYPES, Bytes
from hpcps.session.join import INDEPENDENT, join_launch, join_nobody, join_task, messages
from hpcps.session.member import TIMEOUT
from hpcps.session.outbox import checked_priority
from hpcps.session.participant import Copies
from hpcps.session.pending import (
    PendingExchange,
    free_name,
    kept,
    number_of_call,
    poll,
    synchronize,
    take_name,
)
from hpcps.session.reduction import BROADCAST, Reduction, operation_of, reduction_of
from hpcps.session.session import Session
from hpcps.session.tensors import Declaration, Tensor

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
    "shutdown",
    "size",
    "synchronize",
]

Compressing = str | Mapping[str, Any] | Config | None
"""A compressor of hpcps by its name, its table, or itself; None for arrays as they are."""
_FRONT_END = "hpcps.numpy"


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
            partitions in BytePS's variable `BYTEPS_SCHEDULING_CREDIT`, which servers read too, or 4 MiB.

    Raises:
        SpecError: `credit` or the variable cannot be used.
        LaunchError: the processes cannot reach each other, they have ended their session, or there may be others of
            which this process does not know.
        RunError: this process has joined them with another front end.
    """
    begin(_FRONT_END, lambda: join_nobody(timeout, Copies()) if alone else _join(timeout), credit)


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
    urgency = checked_priority(priority)
    return _begin(_copied(array, name), name, _reduction(average, rule, compression), priority=urgency).finish()


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
    urgency = checked_priority(priority)
    return kept(_begin(_copied(array, name), name, _reduction(average, rule, compression), priority=urgency))


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
    return _begin_broadcast(array, root_rank, name).finish()


def broadcast_async(array: ArrayLike, root_rank: int = 0, name: str | None = None) -> int:
    """Begin a `broadcast`; return a handle for `synchronize` and `poll`."""
    return kept(_begin_broadcast(array, root_rank, name))


@dataclass(slots=True)
class _PendingArray(PendingExchange):
    """An exchange of an array.

    Attributes:
        output: gets the result.
    """

    output: NDArray[Any]

    def finish(self) -> NDArray[Any]:
        """Wait for the result, and return it."""
        self.wait()
        return self.output


def _reduction(average: bool, rule: object, compression: Compressing) -> Reduction:
    return reduction_of(operation_of(average), rule, compression=compression)


def _called(name: str | None) -> str:
    """Return what messages call an array."""
    return f"array '{name}'" if name else "an array without a name"


def _copied(array: ArrayLike, name: str | None, types: Sequence[str] = TYPES) -> NDArray[Any]:
    """Return a copy of an array, with its elements in a row in the order of this processor.

    Raises:
        SpecError: it is no array of one of these types.
    """
    what = _called(name)
    try:
        found = np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{what} is no array of numbers: {error}") from error
    if found.dtype.hasobject:
        raise SpecError(f"{what} is no array of numbers: {array!r:.50}")
    if isinstance(array, np.ma.MaskedArray):
        raise SpecError(f"{what} has a mask, and exchanges have none: use filled()")
    if found.dtype.name not in types:
        raise SpecError(f"{what} is {found.dtype}, which cannot be exchanged: use one of {', '.join(types)}")
    return np.array(found, dtype=found.dtype.newbyteorder("="), order="C")


def _begin_broadcast(array: ArrayLike, root_rank: int, name: str | None) -> _PendingArray:
    root = checked_rank(root_rank, _called(name))
    output, own = _copied(array, name, (*TYPES, *COPIED)), name and f"broadcast/{name}"
    # Processes with different roots must declare different tensors.
    return _begin(output, own, BROADCAST, rank() == root, f" of rank {root}")


def _begin(
    output: NDArray[Any],
    name: str | None,
    reduction: Reduction,
    given: bool = True,
    source: str = "",
    priority: int = 0,
) -> _PendingArray:
    """Begin an exchange in place.

    Args:
        output: the array.
        name: its name; None for a name from its type and shape.
        reduction: how arrays are combined.
        given: whether this process gives its array.
        source: what its name says of the process that gives it, if only one does.
        priority: how urgent it is; larger numbers are sent first.
    """
    form = "" if name else f"unnamed {output.dtype} {list(output.shape)} {reduction}{source}"
    unnamed = free_name(form) if form else ""
    tensor = _declared(unnamed or f"{name}{source}", output, reduction)
    values: Sequence[Bytes] = [output.reshape(-1).view(np.uint8)]
    call = number_of_call(form) if form else 0
    exchange = session().start(tensor, values if given else None, values, call, priority=priority)
    if unnamed:
        take_name(unnamed)
    return _PendingArray(exchange, unnamed, output)


def _declared(name: str, array: NDArray[Any], reduction: Reduction) -> Tensor:
    """Return the declared tensor of an array; see `Participant.declare`."""
    current, given = session(), (array.dtype, array.shape, reduction)
    known = current.declared.get(name)
    if known is not None and known[0] == given:
        return known[1]
    check_front_end(_FRONT_END)
    found = current.declare(Declaration(name, array.dtype.name, (array.shape,), reduction, False))
    current.declared[name] = given, found
    return found


@messages()
def _join(timeout: float) -> Session:
    ancestry = Ancestry()
    if PLAN in ancestry.own([PLAN, OWN_RANK]):
        return join_launch(timeout, Copies())
    if (task := ancestry.task()) is not None:
        return join_task(task, timeout, Copies())
    if ancestry.parent is not None:
        raise LaunchError(f"{ancestry.relation}, and nothing says to which others it belongs: {INDEPENDENT}")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise LaunchError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, as torchrun sets it, whose processes only hpcps.torch joins: "
            f"start the script with `hpcps launch` or mpirun; {INDEPENDENT}"
        )
    return join_nobody(timeout, Copies())
