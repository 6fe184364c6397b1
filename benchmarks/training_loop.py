"""A plain PyTorch loop without hpcps, in one process with one thread.

It writes images per second and per CPU second.

`python benchmarks/training_loop.py SECONDS contiguous_format|channels_last BATCH BARRIER LOOPS FILE`
"""

import json
import sys
import time
from pathlib import Path

import torch
from barrier import Barrier
from torch.nn import functional

from hpcps import registry


def main():
    seconds, form, batch = float(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = registry.models["cifar_resnet20_v1"]().build((3, 32, 32), 10).to(memory_format=form).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    # The loop repeats a few batches, which are neither read, augmented nor normalised; data are as cheap as possible.
    data = [torch.randn(batch, 3, 32, 32).to(memory_format=form) for _ in range(8)]
    labels = torch.randint(0, 10, (batch,))

    def step(number):
        optimizer.zero_grad()
        functional.cross_entropy(network(data[number % len(data)]), labels).backward()
        optimizer.step()

    for number in range(5):
        step(number)
    Barrier(Path(sys.argv[4]), int(sys.argv[5])).wait()
    began, used, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        step(done)
        done += 1
    images = done * batch
    speeds = images / (time.perf_counter() - began), images / (time.process_time() - used)
    Path(sys.argv[6]).write_text(json.dumps(speeds))


if __name__ == "__main__":
    main()
