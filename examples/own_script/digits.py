"""A small network on the digits, with DistributedOptimizer: `hpcps launch -n 4 python digits.py`.

The lines that an existing script needs are marked. `--rule trimmed_mean` replaces the mean of the gradients.
"""

import argparse

import torch
from data import batches, digits

import hpcps.torch as bps  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

bps.init()  # 2
x, y, test_x, test_y = digits(bps.rank(), bps.size())
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), rule=args.rule)  # 3
bps.broadcast_parameters(model.state_dict(), root_rank=0)  # 4
loss = torch.nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    for batch, labels in batches(x, y, epoch):
        optimizer.zero_grad()
        loss(model(batch), labels).backward()
        optimizer.step()
    accuracy = (model(test_x).argmax(1) == test_y).float().mean()
    accuracy = bps.push_pull(accuracy, name="accuracy")
    bps.log(accuracy=accuracy)  # for `hpcps status` and `hpcps plot digits`
if bps.rank() == 0:
    print(f"{bps.size()} processes: accuracy {accuracy:.3f}", flush=True)
