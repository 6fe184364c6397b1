"""The networks of Gluon's model zoo are those of the zoo, and train on images of the sizes that they are made for."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from training_examples import make_run
from zoo import COUNTS, FOR_IMAGENET, PUBLISHED, SIZES

from hpcps import seeds
from hpcps.registry import active
from hpcps.training.build import build_trainer
from hpcps.training.pytorch.device import ComputeDevice
from hpcps.training.pytorch.evaluator import TorchEvaluator
from hpcps.training.pytorch.flat import TorchFlatModel

ROOT = Path(__file__).parents[2]
TRAINED = ("resnet18_v1", "mobilenet_v1", "mobilenet_v2")
"""Those whose training steps take less than a second each."""


def built(name, size, channels=1, classes=10):
    return active().of("models")[name]().build((channels, size, size), classes)


@pytest.mark.sample(4, 12)
@pytest.mark.parametrize("name", COUNTS)
def test_each_has_the_published_number_of_parameters(name):
    size = SIZES[name]
    with torch.device("meta"):
        network = built(name, size).train()
        assert network(torch.empty(2, 1, size, size)).shape == (2, 10)
    assert sum(one.numel() for one in network.parameters()) == COUNTS[name]
    if name in PUBLISHED:
        assert round(COUNTS[name] / 1e6, 2) == PUBLISHED[name]


def test_numbers_of_parameters_say_for_which_samples():
    named = {name: entry.__doc__ for name, entry in active().of("models").items() if name in COUNTS}
    counted = [name for name, text in named.items() if f"{COUNTS[name]:,} parameters" in text]
    assert len(counted) > 20
    assert [name for name in counted if not re.search(r"(one|1) channel", named[name])] == []


@pytest.mark.parametrize("name", FOR_IMAGENET)
def test_each_has_the_parameters_that_the_zoo_documents(name):
    with torch.device("meta"):
        network = built(name, 224, 3, 1000)
    statistics = [one for one in network.buffers() if one.ndim]
    constants = 2 * 3 if name.endswith("_v2") else 0
    assert sum(one.numel() for one in (*network.parameters(), *statistics)) + constants == FOR_IMAGENET[name]


@pytest.mark.sample(2, 12)
@pytest.mark.parametrize("name", COUNTS)
def test_the_smallest_image_is_the_smallest(name):
    smallest = active().of("models")[name].smallest
    with torch.device("meta"):
        network = built(name, smallest).eval()
        assert network(torch.empty(1, 1, smallest, smallest)).shape == (1, 10)
        if smallest > 1:
            with pytest.raises(RuntimeError):
                network(torch.empty(1, 1, smallest - 1, smallest - 1))
        larger = smallest + 40
        assert built(name, larger).eval()(torch.empty(1, 1, larger, larger + 9)[..., :-9]).shape == (1, 10)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TRAINED else pytest.mark.soak) for name in COUNTS]
)
def test_each_trains_a_step_and_is_evaluated(name):
    data = {"name": "digits", "resize": SIZES[name], "limit": 16, "test_limit": 5}
    one = build_trainer(make_run(data, model=name, workers=1, batch_size=8, optimizer={"lr": 1e-3}), "worker", 0)
    assert one.layout.size == COUNTS[name]
    before = np.empty(one.layout.size, np.float32)
    one.copy_to(before)
    assert np.isfinite(one.train(1).loss)
    after = np.empty_like(before)
    one.copy_to(after)
    changed = [block.name for block in one.layout.blocks if (before != after)[block.offset : block.stop].any()]
    # A bias before BatchNorm has no effect but rounding.
    assert len(changed) >= len(one.layout.blocks) - 32
    assert one.evaluate().finite


@pytest.mark.soak
@pytest.mark.parametrize("name", COUNTS)
def test_outputs_and_gradients_are_those_of_mxnet(tmp_path, name):
    """The same parameters and statistics give the same outputs; without dropout, because the masks differ."""
    size, count = (64, 8) if SIZES[name] == 28 else (SIZES[name], 2)
    model, random = TorchFlatModel(built(name, size), ComputeDevice()), np.random.default_rng(5)
    model.draw_weights(seeds.generator(1, "experiment", 0, "weights"))
    parameters = model.parameters.numpy()
    for block in model.layout.blocks:
        if len(block.shape) == 1:
            parameters[block.offset : block.stop] += random.normal(0, 0.1, block.size).astype(np.float32)
    images = random.normal(size=(count, 1, size, size)).astype(np.float32)
    labels = random.integers(0, 10, count)
    TorchEvaluator(model, None, lambda: [(images, labels)]).reestimate_statistics()
    given = {"parameters": parameters, "statistics": model.running_statistics().numpy()}
    np.savez(tmp_path / f"{name}.npz", images=images, labels=labels, **given)
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("mxnet_outputs.py")
    subprocess.run([ROOT / ".venv-mxnet/bin/python", script, tmp_path / f"{name}.npz"], env=variables, check=True)
    theirs = np.load(tmp_path / f"{name}.mxnet.npz")
    with torch.no_grad():
        tested = model.network.eval()(torch.from_numpy(images))
    model.network.train()
    for module in model.network.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    outputs = model.network(torch.from_numpy(images))
    functional.cross_entropy(outputs, torch.from_numpy(labels)).backward()
    ours = {"tested": tested, "trained": outputs.detach(), "gradient": model.gradient}
    far = {what: distance(values.numpy(), theirs[what]) for what, values in ours.items()}
    print(name, far)
    assert far["tested"] < 5e-4
    assert far["trained"] < 5e-4
    assert far["gradient"] < 5e-2  # rounding decides the sign of the input of a few ReLUs


def distance(ours, theirs):
    """Return the difference relative to that of outputs for different images, or to the length of a gradient."""
    spread = theirs - theirs.mean(0) if theirs.ndim > 1 else theirs
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(spread))
