"""`python ddp.py BACKEND DEVICE BATCH SECONDS FOLDER RANK RANKS`: torch DDP trains ResNet-20; writes images/s.

All ranks use the first GPU. nccl refuses several ranks on one GPU, so with nccl there is one rank with a larger batch.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from hpcps import registry

WARM_UP = 5


def main():
    backend, device, batch, seconds = sys.argv[1], torch.device(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    folder, rank, ranks = Path(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(backend, init_method=f"file://{folder}/group", rank=rank, world_size=ranks)
    network = DistributedDataParallel(registry.models["cifar_resnet20_v1"]().build((3, 32, 32), 10).to(device).train())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    # One batch again and again: data cost nothing.
    data = torch.randn(batch, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (batch,), device=device)
    over = torch.zeros(1)
    steps, began = 0, 0.0
    while not over.item():
        if steps == WARM_UP:
            began = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(network(data), labels).backward()
        optimizer.step()
        steps += 1
        if steps > WARM_UP and steps % 8 == 0:
            # Rank 0 decides for all when it is over; reading the flag waits for the device.
            over = over.to(device) + (rank == 0 and time.perf_counter() - began > seconds)
            dist.broadcast(over, 0)
    if device.type == "cuda":
        torch.cuda.synchronize()
    rate = (steps - WARM_UP) * batch / (time.perf_counter() - began)
    (folder / f"rate{rank}").write_text(json.dumps(rate))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
