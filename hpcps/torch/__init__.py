"""The exchange of hpcps for PyTorch scripts: `push_pull`, `DistributedOptimizer`, and a hook for DDP, with any rule.

The names are those of BytePS, with Horovod's `allreduce`. `hpcps launch -n 4 python train.py` starts a script; it
also works under `mpirun`, and on one host with the processes of torch. docs/how-to/own-script.md shows all.

- `exchange`: `push_pull`
- `state`: the session of this process
- `together`: exchanges several tensors as one
- `copies`: copies tensors to and from the buffers of a session
- `compression`: the types to which tensors are converted
- `broadcast`: all processes get the parameters, or an object, of one of them
- `horovod`: Horovod's names
- `optimizer`: `DistributedOptimizer`
- `gradients`: the exchange of the gradients of a step
- `samples`: notices changes of gradients that torch does not count
- `updates`: counts the steps of an optimizer that the session knows only as changes of parameters
- `hook`: the hook of PyTorch's DistributedDataParallel
- `data_parallel`: BytePS's DistributedDataParallel
"""

from hpcps.torch.broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from hpcps.torch.compression import Compression
from hpcps.torch.data_parallel import DistributedDataParallel
from hpcps.torch.exchange import (
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    synchronize,
)
from hpcps.torch.hook import exchange, hook
from hpcps.torch.horovod import Average, Sum, allreduce, allreduce_, allreduce_async, allreduce_async_
from hpcps.torch.optimizer import DistributedOptimizer
from hpcps.torch.state import (
    get_pushpull_speed,
    init,
    is_initialized,
    local_rank,
    local_size,
    log,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "Sum",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "declare",
    "exchange",
    "get_pushpull_speed",
    "hook",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "log",
    "poll",
    "push_pull",
    "push_pull_async",
    "push_pull_async_inplace",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]
