"""A network with channels last is the network that it was, to all who see it by its layout."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from training_examples import make_run

from hpcps import registry, seeds
from hpcps.training.build import build_trainer
from hpcps.training.pytorch.device import ComputeDevice
from hpcps.training.pytorch.flat import TorchFlatModel

CPU = ComputeDevice()
RESNET = {"model": "cifar_resnet20_v1", "workers": 2}


def models():
    for channels_last in (False, True):
        network = registry.models["cifar_resnet20_v1"]().build((3, 32, 32), 10)
        model = TorchFlatModel(network, CPU, channels_last=channels_last)
        model.draw_weights(seeds.generator(1, "experiment", 0, "weights"))
        yield model


def in_layout(model, values):
    out = torch.full_like(values, float("nan"))
    model.to_layout(values, out)
    return out


def test_weights_and_gradients_are_the_same_in_the_layouts_order():
    usual, last = models()
    weights = in_layout(last, last.parameters)
    assert torch.equal(weights, usual.parameters)
    assert not torch.equal(last.parameters, usual.parameters)
    back = torch.empty_like(weights)
    last.from_layout(weights, back)
    assert torch.equal(back, last.parameters)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 32, 32, generator=generator)
    labels = torch.arange(8)
    for model in (usual, last):
        outputs = model.network(model.images(images))
        functional.cross_entropy(outputs, labels).backward()
    gradient = in_layout(last, last.gradient)
    # Twenty layers carry rounding far; elements in another place would be as far apart as gradients are long.
    assert torch.linalg.norm(gradient - usual.gradient) < 1e-2 * torch.linalg.norm(usual.gradient)
    assert torch.linalg.norm(last.gradient - usual.gradient) > 0.1 * torch.linalg.norm(usual.gradient)


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", [{"name": "nag", "lr": 0.1}, {"name": "adam", "lr": 0.001}])
def test_a_checkpoint_is_in_the_layouts_order(monkeypatch, optimizer):
    """One written with channels last is gone on from without them (on a GPU, say), and the other way round."""
    run = make_run({"name": "synthetic", "limit": 96}, optimizer=optimizer, **RESNET)
    first = build_trainer(run, "worker", 0)
    first.train(2)
    other = build_trainer(run, "worker", 0)
    monkeypatch.setattr(registry.models["cifar_resnet20_v1"], "channels_last", False)
    usual = build_trainer(run, "worker", 0)
    for trainer in (usual, other):
        trainer.restore(first.state())
    steps = [np.empty(first.layout.size, np.float32) for _ in range(3)]
    start = steps[0].copy()
    first.copy_to(start)
    for trainer, values in zip((first, other, usual), steps, strict=True):
        trainer.train(1)
        trainer.copy_to(values)
    assert np.array_equal(steps[0], steps[1])
    assert np.linalg.norm(steps[2] - steps[0]) < 0.02 * np.linalg.norm(steps[0] - start)


def test_a_proximal_step_pulls_each_element_to_its_own():
    run = make_run({"name": "synthetic", "limit": 96}, optimizer={"name": "sgd", "lr": 1e-9}, **RESNET)
    trainer = build_trainer(run, "worker", 0)
    anchor = np.arange(trainer.layout.size, dtype=np.float32)
    trainer.train(1, anchor=anchor, pull=1.0)
    after = np.empty_like(anchor)
    trainer.copy_to(after)
    np.testing.assert_allclose(after, anchor, rtol=1e-5)
