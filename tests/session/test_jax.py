"""hpcps.jax: `make frameworks` runs these tests where JAX is installed."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from launched_scripts import launched

WHY = "JAX is not installed: `make frameworks` installs it in an environment"
jax = pytest.importorskip("jax", reason=WHY)
optax = pytest.importorskip("optax", reason=WHY)

import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import hpcps.jax as bps  # noqa: E402
from hpcps.errors import RunError, SpecError  # noqa: E402
from hpcps.rules import Median  # noqa: E402

jax.config.update("jax_num_cpu_devices", 2)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/own_script/digits_jax.py"

# One gradient is larger than a partition, which is divided among the processes.
BITS = """
import sys
import numpy as np
kind = sys.argv[1]
SHAPES = {"a": (500, 600), "b": (7,), "c": (), "d": (0, 3), "e": (1000, 20)}
if kind == "torch":
    import torch
    import hpcps.torch as bps
    def made(array, dtype):
        return torch.from_numpy(array).to(getattr(torch, dtype))
    def taken(array):
        return torch.cat([array.reshape(-1)]).view(torch.uint8).numpy().tobytes()
else:
    import jax
    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import optax
    import hpcps.jax as bps
    def made(array, dtype):
        return jnp.asarray(array).astype(dtype)
    def taken(array):
        assert isinstance(array, jax.Array)
        return np.asarray(array).tobytes()

def given(array, dtype):
    # numpy has no bfloat16, and the frameworks convert other values in different ways.
    array = np.abs(array) if dtype == "uint8" else array
    return made(np.asarray(array, np.float32 if dtype == "bfloat16" else dtype), dtype)

bps.init()
random = np.random.default_rng(bps.rank())
found = []
for dtype in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"):
    for shape in ((), (0,), (5, 33), (300, 211)):
        array = given(random.normal(size=shape) * 9, dtype)
        found.append(bps.push_pull(array, average="float" in dtype, name=f"{dtype} {shape}"))
        found.append(bps.broadcast(array, 1, name=f"{dtype} {shape}"))

def gradients(dtype, shapes):
    types = {name: "float32" if name == "e" else dtype for name in shapes}
    return {name: given(random.normal(size=shape), types[name]) for name, shape in shapes.items()}

def combined(dtype, options):
    shapes = {name: shape for name, shape in SHAPES.items() if name != "d" or "compression" not in options}
    steps = [gradients(dtype, shapes) for _ in range(3)]
    if kind == "torch":
        parameters = {name: torch.nn.Parameter(torch.zeros_like(each)) for name, each in steps[0].items()}
        optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
        optimizer = bps.DistributedOptimizer(optimizer, parameters.items(), **options)
        for step in steps:
            sum((parameters[name] * each).sum() for name, each in step.items()).backward()
            optimizer.synchronize()
            yield from [each.grad for each in parameters.values()]
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
    else:
        exchange = bps.exchange(**options)
        jitted = jax.jit(lambda updates: exchange.update(updates, exchange.init(None))[0])
        for step in steps[:2]:
            yield from jitted(step).values()
        yield from exchange.update(steps[2], exchange.init(None))[0].values()

for dtype, options in (
    ("float32", {}), ("bfloat16", {}), ("float64", {"average": False}), ("float16", {"rule": "median"}),
    ("float32", {"rule": {"kind": "krum", "f": 0}}), ("bfloat16", {"rule": {"kind": "centered_clipping"}}),
    ("float32", {"rule": "median", "compression": "onebit"}), ("float32", {"compression": {"kind": "topk", "k": 0.1}}),
):
    found += combined(dtype, options)
if bps.rank() == 0:
    with open(f"{kind}.bytes", "wb") as file:
        for each in found:
            file.write(str((tuple(each.shape), str(each.dtype).removeprefix("torch."))).encode() + taken(each))
"""

STEPS = """
import os, signal, sys
import jax, jax.numpy as jnp
import optax
import hpcps.jax as bps
bps.init()
optimizer = optax.chain(bps.exchange(), optax.sgd(0.1))
parameters = {"w": jnp.ones((300, 300)), "v": jnp.ones(3)}
state = optimizer.init(parameters)

@jax.jit
def step(parameters, state):
    updates, state = optimizer.update(parameters, state)
    return optax.apply_updates(parameters, updates), state

for k in range(4):
    if k == 2 and bps.rank() == 1:
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("boom")
    parameters, state = step(parameters, state)
"""


@pytest.fixture
def alone():
    bps.init(alone=True)
    yield
    bps.shutdown()


@pytest.mark.usefixtures("starts_processes")
def test_results_have_the_bits_of_torch(tmp_path):
    for kind in ("jax", "torch"):
        launched(tmp_path, BITS, kind)
    one, other = ((tmp_path / f"{kind}.bytes").read_bytes() for kind in ("jax", "torch"))
    assert len(one) > 10_000_000
    assert one == other


@pytest.mark.usefixtures("starts_processes")
def test_an_example_learns_the_digits(tmp_path):
    printed = launched(tmp_path, EXAMPLE, "--epochs", "4", "--rule", "median")
    assert "3 processes: accuracy 0.9" in printed
    assert printed.count(": 56 steps, ") == 3  # 14 batches of 32 of the 479 samples in each epoch


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(("how", "why"), [("killed", "has ended: it was killed"), ("failed", "has failed: ValueError")])
def test_a_process_that_ends_is_named_in_a_sentence(how, why, tmp_path):
    printed = launched(tmp_path, STEPS, how, succeeds=False)
    sentence = f"script.py, line 21: worker-[02].* tensor 'gradient/w to gradient/v'.*: worker-1 {why}"
    lines = [line for line in printed.splitlines() if re.search(sentence, line)]
    assert len(lines) == 2, printed
    assert printed.count("Traceback") == (how == "failed"), printed
    assert "JaxRuntimeError" not in printed
    assert "worker-1 on " in printed.splitlines()[-1]


@pytest.mark.usefixtures("alone")
def test_large_arrays_within_jit_on_one_processor():
    """JAX then has one thread, which waits for the callback."""
    exchange, before = bps.exchange(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        tree = {f"{k}": jnp.full((1024, 1025), float(k)) for k in range(4)}
        step = jax.jit(lambda tree: exchange.update(jax.tree.map(lambda each: each * each, tree), None)[0])
        for _ in range(3):
            found = step(tree)
        assert [float(each[0, 0]) for each in found.values()] == [k * k for k in range(4)]
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("alone")
def test_trees_come_back_as_they_were():
    given = {"a": jnp.ones(3, jnp.bfloat16), "b": [np.float64([1, 2]), 3.0], "c": None, "d": jnp.int8([4])}
    for found in (bps.push_pull(given, False), bps.broadcast(given, name="tree")):
        assert jax.tree.structure(found) == jax.tree.structure(given)
        assert [(each.dtype.name, each.tolist()) for each in jax.tree.leaves(found)] == [
            ("bfloat16", [1, 1, 1]), ("float64", [1, 2]), ("float64", 3), ("int8", [4])
        ]  # fmt: skip
        assert [isinstance(each, jax.Array) for each in jax.tree.leaves(found)] == [True, False, False, True]
    assert bps.push_pull(jax.device_put(jnp.ones(2), jax.devices()[1])).devices() == {jax.devices()[1]}
    for rule in ("median", {"kind": "median"}, Median()):
        assert bps.push_pull(jnp.ones(2), rule=rule).tolist() == [1, 1]


@pytest.mark.usefixtures("alone")
def test_control_flow_and_several_models():
    exchange = bps.exchange()

    def total(tree):
        def step(carried, _):
            found, _ = exchange.update(carried, optax.EmptyState())
            return jax.tree.map(lambda each: 2 * each, found), None

        return jax.lax.scan(step, tree, None, length=3)[0]

    assert jax.jit(total)({"w": jnp.ones(2)})["w"].tolist() == [8, 8]
    assert jax.jit(total)({"w": jnp.ones((2, 1))})["w"].tolist() == [[8], [8]]
    assert exchange.update({}, optax.EmptyState())[0] == {}


def mesh():
    return Mesh(np.array(jax.devices()), ("devices",))


def exchanged(tree):
    return bps.exchange().update(tree, optax.EmptyState())[0]


def spread():
    return jax.device_put(jnp.arange(4.0), NamedSharding(mesh(), PartitionSpec("devices")))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: jax.vmap(exchanged)(jnp.ones((2, 3))), r"exchange\(\) within vmap: a step has one exchange"),
        (lambda: jax.jit(jax.vmap(exchanged))(jnp.ones((2, 3))), r"exchange\(\) within vmap"),
        (lambda: jax.jit(exchanged)(spread()), r"exchange\(\) in a step on 2 devices: .* start a process for each"),
        (lambda: exchanged(spread()), r"exchange\(\) in a step on 2 devices"),
        (
            lambda: jax.shard_map(
                exchanged, mesh=mesh(), in_specs=PartitionSpec("devices"), out_specs=PartitionSpec("devices")
            )(jnp.arange(4.0)),
            r"exchange\(\) in a step on 2 devices",
        ),
        (lambda: jax.jit(bps.push_pull)(jnp.ones(2)), "arrays with values, which there are not within jit"),
        (lambda: bps.push_pull({"w": jnp.uint32([1])}, False, "x"), "array 'x/w' is uint32, which cannot"),
        (lambda: bps.push_pull({"w": jnp.int32([1])}, name="x"), "'x/w' is int32: the mean is for floats"),
        (lambda: bps.push_pull({"w": "text"}, name="x"), "array 'x/w' is <U4, which cannot"),
        (lambda: bps.broadcast(jnp.ones(2), 1, "w"), "the root_rank of array 'w' is 1: the ranks go from 0 to 0"),
        (lambda: bps.exchange(average=False, rule="median"), "a rule is in place of the mean"),
        (lambda: bps.exchange(rule=3), "rule must be the name, the table or an object of one"),
        (lambda: jax.jit(lambda x: bps.exchange(rule="nobody").update(x, None)[0])(jnp.ones(2)), "nobody"),
        (lambda: exchanged({"w": jnp.uint32([1])}), "'.*gradient/w' is uint32, which cannot be exchanged"),
        (lambda: exchanged({"w": jnp.int32([1])}), "gradient/w' is int32: the mean is for floats"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(SpecError, match=message):
        call()


def test_what_there_is_before_init():
    for call in (bps.push_pull, exchanged, jax.jit(exchanged)):
        with pytest.raises(RunError, match=r"call init\(\) first"):
            call(jnp.ones(2))
