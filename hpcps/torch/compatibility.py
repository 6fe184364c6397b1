"""The names of Horovod and BytePS that have no meaning here, and what to use instead of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from hpcps.errors import SpecError
from hpcps.session.current import is_initialized
from hpcps.session.join import messages

Function = TypeVar("Function", bound=Callable[..., Any])


class AbsentNames(NamedTuple):
    """Names that `hpcps.torch` does not have, for one reason.

    Attributes:
        names: the names; those of arguments end with =.
        library: the library that has them.
        instead: what to use instead, as the end of a sentence.
    """

    names: Sequence[str]
    library: str
    instead: str


ABSENT = (
    AbsentNames(["Adasum"], "Horovod", "use op=Average, or a rule with rule="),
    AbsentNames(
        ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set", "process_set=", "process_sets="],
        "Horovod",
        "all processes exchange with each other: leave out process_set=, or use groups of torch.distributed",
    ),
    AbsentNames(
        ["SyncBatchNorm", "sync_batch_norm"],
        "Horovod",
        "each process has the statistics of its own batch: use torch.nn.GroupNorm, or torch.nn.SyncBatchNorm, which "
        "needs torch.distributed and a GPU",
    ),
    AbsentNames(["alltoall", "alltoall_async"], "Horovod", "use allgather, and take the rows for this process"),
    AbsentNames(
        ["reducescatter", "reducescatter_async", "grouped_reducescatter", "grouped_reducescatter_async"],
        "Horovod",
        "use allreduce, and take the rows of this process",
    ),
    AbsentNames(
        ["grouped_allgather", "grouped_allgather_async"],
        "Horovod",
        "call allgather_async for each tensor, and then synchronize for each handle",
    ),
    AbsentNames(["HorovodInternalError"], "Horovod", "an exchange that fails raises hpcps.errors.RunError"),
    AbsentNames(["num_groups=", "groups="], "Horovod", "small gradients travel together by themselves: leave it out"),
    AbsentNames(["comm="], "Horovod", "`hpcps launch` or mpirun says which processes belong together: leave it out"),
    AbsentNames(["lazy="], "BytePS", "init always waits for the other processes: leave it out"),
    AbsentNames(["start_timeline", "stop_timeline"], "Horovod", "start the script with `hpcps launch --trace`"),
    AbsentNames(
        ["mpi_threads_supported"],
        "Horovod",
        "ask MPI: mpi4py.MPI.Query_thread() == mpi4py.MPI.THREAD_MULTIPLE",
    ),
    AbsentNames(
        ["functions"], "Horovod", "import broadcast_parameters, broadcast_object and the others from hpcps.torch"
    ),
    AbsentNames(["check_extension"], "Horovod", "hpcps.torch has no compiled extension: leave it out"),
    AbsentNames(["num_rank_is_power_2"], "Horovod", "it is for Adasum: leave it out"),
    AbsentNames(
        ["handle_average_backwards_compatibility", "get_average_backwards_compatibility_fun"],
        "Horovod",
        "give average= or op= to allreduce",
    ),
    AbsentNames(
        [
            "HorovodAllreduce",
            "HorovodGroupedAllreduce",
            "HorovodAllgather",
            "HorovodGroupedAllgather",
            "HorovodBroadcast",
            "HorovodAlltoall",
            "HorovodReducescatter",
            "HorovodGroupedReducescatter",
        ],
        "Horovod",
        "allreduce, allgather and broadcast are differentiable themselves",
    ),
    AbsentNames(
        ["BytePSPushPull", "BytePSAllgather"], "BytePS", "push_pull and allgather are differentiable themselves"
    ),
    AbsentNames(
        ["push_pull_group_sync_inplace", "byteps_torch_set_num_grads"],
        "BytePS",
        "DistributedDataParallel combines the gradients of a backward pass at its end",
    ),
    AbsentNames(["send_async", "recv_async"], "BytePS", "use torch.distributed.isend and irecv"),
    AbsentNames(
        ["batched_fuse_", "batched_unfuse_", "batched_zero_"],
        "BytePS",
        "use torch._foreach_copy_ and torch._foreach_zero_; small tensors travel together by themselves",
    ),
    AbsentNames(
        ["delay_compensation_", "dc_adam_"], "BytePS", "asynchronous steps use gradients as they are: leave it out"
    ),
)
"""All of them; the page on own scripts has this table."""


def absent(name: str) -> SpecError | None:
    """Return the error of a name that `hpcps.torch` does not have; None if neither library has it."""
    for row in ABSENT:
        if name in row.names:
            return SpecError(f"hpcps.torch has no {name}, a name of {row.library}: {row.instead}")
    return None


def refuses_absent_arguments(function: Function) -> Function:
    """Let a function say what to use instead of an argument that it does not have."""

    @wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if (error := absent(f"{name}=")) is not None:
                with nullcontext() if is_initialized() else messages():  # a session prints it itself
                    raise error
        return function(*args, **kwargs)

    return refusing  # type: ignore[return-value]
