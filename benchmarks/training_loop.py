"""What people write without hpcps: one process, one thread, a plain PyTorch loop.

Writes images per second, and per CPU second.

`python benchmarks/training_loop.py SECONDS contiguous_format|channels_last BATCH MEETING LOOPS FILE`
"""

import json
import sys
import time
from pathlib import Path

import torch
from meeting import Meeting
from torch.nn import functional

from hpcps.training.catalogue import DATA_SETS
from hpcps.training.pytorch.models import build_model


def main():
    seconds, form, batch = float(sys.argv[1]), getattr(torch, sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = build_model("cifar_resnet20_v1", DATA_SETS["synthetic"]).to(memory_format=form).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    # The same few batches over and over: nothing is read, augmented or normalised, which is as cheap as data can be.
    data = [torch.randn(batch, 3, 32, 32).to(memory_format=form) for _ in range(8)]
    labels = torch.randint(0, 10, (batch,))

    def step(number):
        optimizer.zero_grad()
        functional.cross_entropy(network(data[number % len(data)]), labels).backward()
        optimizer.step()

    for number in range(5):
        step(number)
    Meeting(Path(sys.argv[4]), int(sys.argv[5])).meet()
    began, used, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        step(done)
        done += 1
    images = done * batch
    speeds = images / (time.perf_counter() - began), images / (time.process_time() - used)
    Path(sys.argv[6]).write_text(json.dumps(speeds))


if __name__ == "__main__":
    main()
