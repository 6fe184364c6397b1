"""hpcps.mxnet: `DistributedTrainer` of scripts of Gluon, in the environment that has MXNet."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.usefixtures("starts_processes"), pytest.mark.thorough]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-mxnet/bin/python"

BEGIN = """
import os, signal, sys
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
import hpcps.mxnet as bps
import hpcps.numpy as arrays
from hpcps.errors import RunError, SpecError
bps.init()

def network(first=5, dtype="float32"):
    mx.random.seed(bps.rank())
    net = gluon.nn.Sequential()
    net.add(gluon.nn.Dense(300, in_units=first, activation="relu", dtype=dtype), gluon.nn.Dense(2, dtype=dtype))
    net.initialize(mx.init.Normal(1))
    return net

def backward(net, step, dtype="float32"):
    x = np.random.default_rng([step, bps.rank()]).normal(size=(7, 5)).astype(dtype)
    with autograd.record():
        value = net(mx.nd.array(x, dtype=dtype)).square().mean()
    value.backward()

def values(net, what):
    return [getattr(param, what)().asnumpy() for _, param in sorted(net.collect_params().items())]
"""

STEPS = (
    BEGIN
    + """
def mean(found, k, **options):
    return [arrays.push_pull(each, name=f"{k} {i} {options}", **options) for i, each in enumerate(found)]

def at_once(found, k, **options):
    flat = arrays.push_pull(np.concatenate([each.reshape(-1) for each in found]), name=f"{k} {options}", **options)
    parts = np.split(flat, np.cumsum([each.size for each in found])[:-1])
    return [part.reshape(each.shape) for part, each in zip(parts, found)]

kinds = [(0, "float32", {}, mean), (5, "float64", {}, mean), (0, "float32", {"rule": "median"}, mean),
         (5, "float32", {"rule": {"kind": "krum", "f": 0}}, at_once), (5, "float32", {"compression": "onebit"}, mean)]
for k, (first, dtype, options, combined) in enumerate(kinds):  # 0: the shape is known from the first forward pass only
    net, plain = network(first, dtype), network(first, dtype)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, root_rank=1, **options)
    own = None
    for step in range(3):
        backward(net, step, dtype)
        if own is None:
            root = [arrays.broadcast(each, 1, name=f"{k} {i}") for i, each in enumerate(values(net, "data"))]
            assert all((a == b).all() for a, b in zip(root, values(net, "data")))
            backward(plain, step, dtype)  # which makes its parameters
            for (_, param), each in zip(sorted(plain.collect_params().items()), root):
                param.set_data(mx.nd.array(each, dtype=dtype))
            own = gluon.Trainer(plain.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=None)
        backward(plain, step, dtype)
        gradients = values(plain, "grad")
        assert all((a == b).all() for a, b in zip(gradients, values(net, "grad")))
        wanted = combined(gradients, k, **options)
        for (_, param), each in zip(sorted(plain.collect_params().items()), wanted):
            param.grad()[:] = each
        own.step(4)
        if step == 1:
            trainer.allreduce_grads()
            assert all((a == b).all() for a, b in zip(wanted, values(net, "grad")))
            trainer.update(4)
        else:
            trainer.step(4)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(values(plain, "data"), values(net, "data"))), (k, step)

def refuses(kind, message, call):
    try:
        call()
    except kind as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)

refuses(RunError, "no backward pass since the last step has computed the gradient of", lambda: trainer.step(4))
pair = gluon.nn.Dense(2, in_units=2)
pair.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
refuses(SpecError, "the parameters are on 2 devices", lambda: bps.DistributedTrainer(pair.collect_params(), "sgd"))
table = gluon.nn.Embedding(3, 2, sparse_grad=True)
table.initialize()
refuses(SpecError, "or its gradient is sparse", lambda: bps.DistributedTrainer(table.collect_params(), "sgd"))
refuses(SpecError, "the root_rank of parameters is 7", lambda: bps.broadcast_parameters(net.collect_params(), 7))
refuses(SpecError, 'did you mean "median"', lambda: bps.DistributedTrainer(net.collect_params(), "sgd", rule="medium"))
here = mx.nd.array([bps.rank(), 1.5], dtype="float64")
assert bps.push_pull(here, False, name="here").asnumpy().tolist() == [3, 4.5]
assert bps.broadcast(here, 2, name="there").asnumpy().tolist() == [2, 1.5]
sys.stdout.write("right\\n")
"""
)

KILLED = (
    BEGIN
    + """
net = network()
trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
for step in range(3):
    backward(net, step)
    if (step, bps.rank()) == (2, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    trainer.step(1)
"""
)


@pytest.fixture
def launch(tmp_path):
    """Return a function that launches a script in the environment of MXNet."""
    if not PYTHON.exists():
        if "CI" in os.environ:
            pytest.fail(".venv-mxnet is missing: `make mxnet-env` makes it")
        pytest.skip(".venv-mxnet is missing: `make mxnet-env` makes it")

    def call(script, *arguments):
        words = ["-m", "hpcps", "launch", "-n", "3", "--results", tmp_path / "results", PYTHON, "-W", "ignore", script]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [PYTHON, *words, *arguments], env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    return call


def test_steps_equal_those_with_the_combined_gradients(tmp_path, launch):
    (tmp_path / "train.py").write_text(STEPS)
    done = launch("train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right\n") == 3
    assert done.stdout.count(": 15 steps, ") == 3, done.stdout


def test_a_process_that_is_killed_is_named(tmp_path, launch):
    (tmp_path / "train.py").write_text(KILLED)
    done = launch("train.py")
    assert done.returncode == 1
    assert "worker-1" in done.stderr
    assert "train.py, line" in done.stdout
    assert "waited for worker-1 in tensor 'gradient/dense" in done.stdout


def test_the_example_learns_the_digits(launch):
    done = launch(ROOT / "examples/own_script/digits_gluon.py", "--epochs", "4", "--rule", "median")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 processes: accuracy 0.9" in done.stdout
