"""Training on the digits with 2, 4 and again 2 processes, which join and leave while the others go on.

`hpcps launch -n 2 --servers 1 --transport pslite --survive python resizing.py`
"""

import argparse

import torch
from data import batches, digits

import hpcps.torch as bps

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--workers", type=int, nargs=3, default=(2, 4, 2), help="in each third of the epochs")
args = parser.parse_args()

bps.init()
torch.manual_seed(bps.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
loss = torch.nn.CrossEntropyLoss()


@bps.elastic.run
def train(state):
    """Train from the last commit on; a process that has joined begins here, too."""
    while state.epoch < args.epochs:
        wanted = args.workers[3 * state.epoch // args.epochs]
        if bps.size() != wanted:
            state.commit()
            bps.suspend()
            bps.resume(workers=wanted)
            state.sync()
        x, y, test_x, test_y = digits(bps.rank(), bps.size())  # each process has another part with another number
        for batch, labels in batches(x, y, state.epoch):
            optimizer.zero_grad()
            loss(model(batch), labels).backward()
            optimizer.step()
        state.epoch += 1
        accuracy = bps.push_pull((model(test_x).argmax(1) == test_y).float().mean(), name="accuracy")
        bps.log(epoch=state.epoch, accuracy=accuracy)
        if bps.rank() == 0:
            print(f"epoch {state.epoch}: {bps.size()} processes, accuracy {accuracy:.3f}", flush=True)
        state.commit()


train(bps.TorchState(model=model, optimizer=optimizer, epoch=0))
