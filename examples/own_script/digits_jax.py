"""A small network on the digits, with JAX and optax: `hpcps launch -n 4 python digits_jax.py`.

The lines that an existing script needs are marked. `--rule` as in digits.py.
"""

import argparse

import jax
import jax.numpy as jnp
import optax
from data_numpy import batches, digits

import hpcps.jax as bps  # 1

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--rule", help="a rule of hpcps, such as median; default: the mean")
args = parser.parse_args()

bps.init()  # 2
x, y, test_x, test_y = digits(bps.rank(), bps.size())


def initial(key):
    """Return random weights of a network with one hidden layer."""
    sizes = {"hidden": (64, 128), "output": (128, 10)}
    return {
        name: {"kernel": jax.random.normal(each, shape) / shape[0] ** 0.5, "bias": jnp.zeros(shape[1])}
        for each, (name, shape) in zip(jax.random.split(key), sizes.items(), strict=True)
    }


def outputs(parameters, samples):
    """Return the unnormalised logarithms of the probabilities of the classes."""
    hidden, output = parameters["hidden"], parameters["output"]
    return jax.nn.relu(samples @ hidden["kernel"] + hidden["bias"]) @ output["kernel"] + output["bias"]


def loss(parameters, samples, labels):
    """Return the mean cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs(parameters, samples), labels).mean()


optimizer = optax.chain(bps.exchange(rule=args.rule), optax.sgd(0.1, momentum=0.9))  # 3


@jax.jit
def step(parameters, state, samples, labels):
    """Return the parameters and the state of the optimizer after a step."""
    updates, state = optimizer.update(jax.grad(loss)(parameters, samples, labels), state)
    return optax.apply_updates(parameters, updates), state


parameters = bps.broadcast(initial(jax.random.key(bps.rank())))  # 4
state = optimizer.init(parameters)
for epoch in range(args.epochs):
    for batch, labels in batches(x, y, epoch):
        parameters, state = step(parameters, state, batch, labels)
    accuracy = (outputs(parameters, test_x).argmax(1) == test_y).mean()
    accuracy = bps.push_pull(accuracy, name="accuracy")
    bps.log(accuracy=accuracy)  # for `hpcps status` and `hpcps plot digits_jax`
if bps.rank() == 0:
    print(f"{bps.size()} processes: accuracy {accuracy:.3f}", flush=True)
