"""A small network of MXNet's Gluon on the digits: `hpcps launch -n 4 python digits_gluon.py`.

The lines that an existing script needs are marked. `--rule trimmed_mean` replaces the mean of the gradients.
"""

import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

import hpcps.mxnet as bps  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

bps.init()  # 2
found = load_digits()
x, y = mx.nd.array(found.data / 16), mx.nd.array(found.target)
order = np.random.default_rng(0).permutation(len(x))
test, train = order[:360], order[360:]
mine = train[bps.rank() : len(train) - len(train) % bps.size() : bps.size()]  # 3: the part of this process
mx.random.seed(bps.rank())
net = gluon.nn.Sequential()
net.add(gluon.nn.Dense(128, activation="relu"), gluon.nn.Dense(10))
net.initialize()
trainer = bps.DistributedTrainer(  # 4: in place of gluon.Trainer
    net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, rule=args.rule
)
loss = gluon.loss.SoftmaxCrossEntropyLoss()
for epoch in range(args.epochs):
    shuffled = np.random.default_rng(epoch).permutation(mine)
    for part in np.split(shuffled, range(32, len(shuffled), 32)):
        with autograd.record():
            value = loss(net(x[part]), y[part])
        value.backward()
        trainer.step(len(part))
    accuracy = (net(x[test]).argmax(axis=1) == y[test]).mean()
    accuracy = float(bps.push_pull(accuracy, name="accuracy").asscalar())
    bps.log(accuracy=accuracy)  # for `hpcps status` and `hpcps plot digits_gluon`
if bps.rank() == 0:
    print(f"{bps.size()} processes: accuracy {accuracy:.3f}", flush=True)
