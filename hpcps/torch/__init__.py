"""The exchange of hpcps for PyTorch scripts: `push_pull`, `DistributedOptimizer`, and a hook for DDP, with any rule.

The names are those of BytePS, with Horovod's `allreduce`. `hpcps launch -n 4 python train.py` starts a script; under
torchrun it works on one host. docs/how-to/own-script.md shows both.
"""

from hpcps.torch.broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from hpcps.torch.exchange import (
    allreduce,
    declare,
    poll,
    push_pull,
    push_pull_async,
    push_pull_async_inplace,
    synchronize,
)
from hpcps.torch.hook import exchange, hook
from hpcps.torch.optimizer import DistributedOptimizer
from hpcps.torch.state import init, is_initialized, local_rank, local_size, log, rank, shutdown, size

__all__ = [
    "DistributedOptimizer",
    "allreduce",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "declare",
    "exchange",
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
