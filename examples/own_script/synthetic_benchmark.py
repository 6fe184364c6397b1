"""Images per second on random data, as the synthetic benchmarks of BytePS and Horovod measure them.

`hpcps launch -n 4 python synthetic_benchmark.py`; `--hook` uses DistributedDataParallel with the hook of hpcps instead.
"""

import argparse
import timeit

import torch
from torch.nn import functional

import hpcps.torch as bps

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--width", type=int, default=32, help="channels of the network")
parser.add_argument("--num-warmup-batches", type=int, default=2)
parser.add_argument("--num-batches-per-iter", type=int, default=5)
parser.add_argument("--num-iters", type=int, default=5)
parser.add_argument("--fp16-pushpull", action="store_true", help="exchange gradients as float16")
parser.add_argument("--hook", action="store_true", help="use DistributedDataParallel and the hook")
args = parser.parse_args()

bps.init()
torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, args.width, 3, padding=1), torch.nn.ReLU()]
for _ in range(4):
    layers += [torch.nn.Conv2d(args.width, args.width, 3, padding=1), torch.nn.BatchNorm2d(args.width), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(args.width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if args.hook:
    torch.distributed.init_process_group("gloo")
    train = torch.nn.parallel.DistributedDataParallel(model)
    train.register_comm_hook(bps.exchange(), bps.hook)
else:
    train = model
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
data, target = torch.randn(args.batch_size, 3, 32, 32), torch.randint(10, (args.batch_size,))


def step():
    """Train on the batch."""
    optimizer.zero_grad()
    functional.cross_entropy(train(data), target).backward()
    optimizer.step()


timeit.timeit(step, number=args.num_warmup_batches)
speeds = torch.tensor(
    [
        args.batch_size * args.num_batches_per_iter / timeit.timeit(step, number=args.num_batches_per_iter)
        for _ in range(args.num_iters)
    ]
)
if bps.rank() == 0:
    spread = 1.96 * speeds.std(correction=0)
    print(f"images/s of each process: {speeds.mean():.1f} +- {spread:.1f}")
    print(
        f"images/s of {bps.size()} processes: {bps.size() * speeds.mean():.1f} +- {bps.size() * spread:.1f}", flush=True
    )
if args.hook:
    torch.distributed.destroy_process_group()
