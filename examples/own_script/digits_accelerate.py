"""The digits with Accelerate of Hugging Face and the hook of hpcps, whose line is marked.

`torchrun --nproc-per-node 4 digits_accelerate.py`, or `hpcps launch -n 4 python digits_accelerate.py`; `--rule` as in
digits.py.
"""

import argparse

import torch
from accelerate import Accelerator
from data import digits
from torch.utils.data import DataLoader, TensorDataset

import hpcps.torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

accelerator = Accelerator(cpu=True)
x, y, test_x, test_y = digits(0, 1)  # Accelerate gives each process its part
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
model.register_comm_hook(hpcps.torch.exchange(rule=args.rule), hpcps.torch.hook)  # the one line more
for _ in range(args.epochs):
    for batch, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.cross_entropy(model(batch), labels))
        optimizer.step()
accuracy = (network(test_x).argmax(1) == test_y).float().mean()
hpcps.torch.log(accuracy=accuracy)  # for `hpcps status`
accelerator.print(f"{accelerator.num_processes} processes: accuracy {accuracy:.3f}", flush=True)
accelerator.end_training()
