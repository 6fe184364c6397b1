"""The same with DistributedDataParallel and the hook of hpcps, whose line is marked.

`torchrun --nproc-per-node 4 digits_ddp.py`, or `hpcps launch -n 4 python digits_ddp.py`; `--rule` as in digits.py.
"""

import argparse

import torch
import torch.distributed as dist
from data import batches, digits
from torch.nn.parallel import DistributedDataParallel

import hpcps.torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

dist.init_process_group("gloo")
x, y, test_x, test_y = digits(dist.get_rank(), dist.get_world_size())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
ddp.register_comm_hook(hpcps.torch.exchange(rule=args.rule), hpcps.torch.hook)  # the one line more
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
loss = torch.nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    for batch, labels in batches(x, y, epoch):
        optimizer.zero_grad()
        loss(ddp(batch), labels).backward()
        optimizer.step()
    accuracy = (model(test_x).argmax(1) == test_y).float().mean()
    hpcps.torch.log(accuracy=accuracy)  # for `hpcps status` and `hpcps plot digits_ddp`
if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} processes: accuracy {accuracy:.3f}", flush=True)
dist.destroy_process_group()
