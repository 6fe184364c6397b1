"""`python gloo.py FOLDER RANK RANKS`: all_reduce of torch.distributed over gloo."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rounds import take_rounds


class Gloo:
    """One call, in place."""

    def __init__(self, elements):
        self._tensor = torch.zeros(elements)
        self.buffer = self._tensor.numpy()

    def run(self):
        """See `Exchange.run`."""
        dist.all_reduce(self._tensor)


def main():
    folder, rank, ranks = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks)
    take_rounds(folder, rank, ranks, Gloo)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
