"""`python rpc.py FOLDER RANK RANKS`: a simple parameter server with torch.distributed.rpc.

Rank RANKS is the server: it adds the workers' tensors, and answers all workers after the last tensor.
"""

import os
import sys
import threading
from pathlib import Path

import torch
from rounds import take_rounds
from torch.distributed import rpc

lock = threading.Lock()
pushed = []
total = None
sum_is_there = None


@rpc.functions.async_execution
def push_and_pull(tensor, ranks):
    """Add one worker's tensor; the answer is the sum of all tensors, once all are received."""
    global total, sum_is_there
    with lock:
        if not pushed:
            sum_is_there, total = torch.futures.Future(), tensor
        else:
            total += tensor
        pushed.append(None)
        answer = sum_is_there
        if len(pushed) == ranks:
            pushed.clear()
            answer.set_result(total)
        return answer


class Rpc:
    """One call of the server; the answer is the new model, which a worker uses without copying it."""

    def __init__(self, elements, ranks):
        self._tensor, self._ranks = torch.zeros(elements), ranks
        self.buffer = self._tensor.numpy()

    def run(self):
        """See `Exchange.run`."""
        self._tensor = rpc.rpc_sync("server", push_and_pull, (self._tensor, self._ranks), timeout=0)
        self.buffer = self._tensor.numpy()


def main():
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=ranks + 1, init_method=f"file://{folder}/rpc")
    name = "server" if rank == ranks else f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=ranks + 1, rpc_backend_options=options)
    if rank < ranks:
        take_rounds(folder, rank, ranks, lambda elements: Rpc(elements, ranks))
    rpc.shutdown()


if __name__ == "__main__":
    main()
