"""A convolutional network on the digits, as the MNIST programs of BytePS and Horovod train one.

`hpcps launch -n 4 python mnist.py`; `--hook` uses DistributedDataParallel with the hook of hpcps instead.
"""

import argparse

import torch
from data import batches, digits
from torch.nn import functional

import hpcps.torch as bps

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--lr", type=float, default=0.05, help="for one process; it grows with the number of processes")
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--fp16-pushpull", action="store_true", help="exchange gradients as float16")
parser.add_argument("--hook", action="store_true", help="use DistributedDataParallel and the hook")
args = parser.parse_args()


class Net(torch.nn.Module):
    """Two convolutions and two dense layers, for images of 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 3)
        self.conv2 = torch.nn.Conv2d(10, 20, 3)
        self.fc1 = torch.nn.Linear(80, 50)
        self.fc2 = torch.nn.Linear(50, 10)

    def forward(self, x):
        """Return the logarithms of the probabilities of the classes."""
        x = functional.relu(self.conv1(x))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2)).flatten(1)
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), dim=1)


bps.init()
torch.manual_seed(bps.rank())
x, y, test_x, test_y = digits(bps.rank(), bps.size())
x, test_x = x.view(-1, 1, 8, 8), test_x.view(-1, 1, 8, 8)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=args.momentum)
if args.hook:
    torch.distributed.init_process_group("gloo")
    train = torch.nn.parallel.DistributedDataParallel(model)
    train.register_comm_hook(bps.exchange(), bps.hook)
else:
    train = model
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)


def metric(value, name):
    """Return the mean of a number over all processes."""
    return float(bps.push_pull(torch.as_tensor(value), name=name))


for epoch in range(args.epochs):
    model.train()
    for data, target in batches(x, y, epoch, args.batch_size):
        optimizer.zero_grad()
        functional.nll_loss(train(data), target).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    output = model(test_x[bps.rank() :: bps.size()])
target = test_y[bps.rank() :: bps.size()]
loss = metric(functional.nll_loss(output, target), "loss")
accuracy = metric((output.argmax(1) == target).float().mean(), "accuracy")
bps.log(epoch=args.epochs, loss=loss, accuracy=accuracy)
if bps.rank() == 0:
    print(f"{bps.size()} processes: loss {loss:.3f}, accuracy {accuracy:.3f}", flush=True)
if args.hook:
    torch.distributed.destroy_process_group()
