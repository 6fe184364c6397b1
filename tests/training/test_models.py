import numpy as np
import pytest
import torch

from hpcps import seeds
from hpcps.registry import active
from hpcps.training.pytorch.device import ComputeDevice
from hpcps.training.pytorch.flat import TorchFlatModel

CPU = ComputeDevice()


def flat(name, data="cifar10", seed=1):
    facts = active().of("datasets")[data].facts
    model = TorchFlatModel(active().of("models")[name]().build(facts.shape, facts.classes), CPU)
    model.draw_weights(seeds.generator(seed, "experiment", 0, "weights"))
    return model


@pytest.mark.parametrize("data", [name for name in active().of("datasets") if name != "text"])
@pytest.mark.parametrize("name", ["cnn", "mlp", "cifar_resnet8_v1", "cifar_resnet20_v1"])
def test_every_model_takes_every_image(name, data):
    facts = active().of("datasets")[data].facts
    model = flat(name, data)
    assert model.network(torch.zeros(2, *facts.shape)).shape == (2, facts.classes)


def test_weights_are_gluons_xavier():
    model = flat("cifar_resnet20_v1")
    values = {
        block.name: model.parameters[block.offset : block.stop].view(block.shape) for block in model.layout.blocks
    }
    for name, value in values.items():
        if value.ndim > 1:
            area = value[0, 0].numel()
            bound = np.sqrt(3 / ((value.shape[0] * area + value.shape[1] * area) / 2))
            assert value.abs().max() <= bound * (1 + 1e-6), name
            assert value.abs().max() > 0.9 * bound
            assert abs(float(value.mean())) < 0.2 * bound
        else:
            gamma = value.numel() != 10 and name.endswith("weight")
            assert torch.equal(value, torch.full_like(value, 1.0 if gamma else 0.0)), name
    assert torch.equal(model.parameters, flat("cifar_resnet20_v1").parameters)
    assert not torch.equal(model.parameters, flat("cifar_resnet20_v1", seed=2).parameters)
