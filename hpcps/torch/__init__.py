"""The exchange of hpcps for PyTorch scripts: `push_pull`, `DistributedOptimizer`, and a hook for DDP, with any rule.

The names are those of BytePS, with Horovod's `allreduce`. `hpcps launch -n 4 python train.py` starts a script; it
also works under `mpirun`, and on one host with the processes of torch. docs/how-to/own-script.md shows all.

- `combining`: `push_pull`
- `exchange`: exchanges that have begun, their names and handles
- `rows`: sparse tensors and allgathers, of which each process gives a number of rows
- `state`: which other processes a script joins
- `together`: exchanges several tensors as one
- `copies`: copies tensors to and from the buffers of a session
- `compression`: the types to which tensors are converted
- `collectives`: broadcasts, allgathers and barriers
- `horovod`: Horovod's names
- `optimizer`: `DistributedOptimizer`
- `cross_barrier`: `CrossBarrier`, with which each layer waits for its own parameters only
- `gradients`: the exchange of the gradients of a step
- `gradient_buckets`: the gradients that are exchanged at once
- `samples`: notices changes of gradients that torch does not count
- `resuming`: `TorchState`, with which a script goes on when it is started again
- `kept`: its commits in memory, for a script that survives the loss of processes
- `elastic`: Horovod's module of elastic training
- `suspension`: BytePS's `suspend` and `resume`, also with other numbers of processes
- `updates`: counts the steps of an optimizer that the session knows only as changes of parameters
- `hook`: the hook of PyTorch's DistributedDataParallel
- `data_parallel`: BytePS's DistributedDataParallel
- `parallel`: BytePS's module of it
- `ops`: BytePS's module of operations
- `mpi_ops`: Horovod's module of operations
- `compatibility`: the names of Horovod and BytePS that have no meaning here
"""

from contextlib import nullcontext
from importlib import import_module
from typing import Any

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
    shutdown,
    size,
)
from hpcps.session.join import messages
from hpcps.session.pending import poll, synchronize
from hpcps.torch.collectives import (
    allgather,
    allgather_async,
    allgather_object,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    join,
)
from hpcps.torch.combining import (
    declare,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    push_pull_inplace,
)
from hpcps.torch.compatibility import absent
from hpcps.torch.compression import Compression
from hpcps.torch.cross_barrier import CrossBarrier
from hpcps.torch.data_parallel import DistributedDataParallel
from hpcps.torch.hook import exchange, hook
from hpcps.torch.horovod import (
    Average,
    Max,
    Min,
    Product,
    Sum,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    mlsl_built,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
    sparse_allreduce_async,
)
from hpcps.torch.optimizer import DistributedOptimizer
from hpcps.torch.resuming import TorchState
from hpcps.torch.state import init
from hpcps.torch.suspension import resume, suspend

__all__ = [
    "Average",
    "Compression",
    "CrossBarrier",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "TorchState",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "byteps_push_pull",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "declare",
    "exchange",
    "get_pushpull_speed",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "hook",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "log",
    "mlsl_built",
    "mpi_built",
    "mpi_enabled",
    "nccl_built",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "push_pull_inplace",
    "rank",
    "resume",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "suspend",
    "synchronize",
]

byteps_push_pull = push_pull_async_inplace
"""BytePS's other name of `push_pull_async_inplace`."""
_MODULES = ("cross_barrier", "elastic", "mpi_ops", "ops", "parallel")


def __getattr__(name: str) -> Any:
    """Return a module that scripts of Horovod or BytePS take as an attribute.

    Raises:
        SpecError: the name is one of theirs that has no meaning here. It is no AttributeError, because a `from` import
            would replace its message.
        AttributeError: the name is none of theirs.
    """
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if (error := absent(name)) is not None:
        with nullcontext() if is_initialized() else messages():  # a session prints it itself
            raise error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
