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


@pytest.mark.parametrize(("depth", "trainable"), [(20, 272_474), (32, 466_906), (44, 661_338), (56, 855_770)])
def test_cifar_resnets_have_gluoncvs_parameters(depth, trainable):
    """The count for 20 is GluonCV's; each step of 12 layers adds 4 layers, with their BatchNorm, to every stage."""
    assert trainable == 272_474 + (depth - 20) // 12 * 4 * sum(9 * c * c + 2 * c for c in (16, 32, 64))
    model = flat(f"cifar_resnet{depth}_v1")
    assert model.layout.size == trainable
    assert len(model.running_statistics()) == 1_568 + (depth - 20) // 12 * 4 * 2 * (16 + 32 + 64)


def test_the_deepest_resnet_is_built():
    assert flat("cifar_resnet110_v1").layout.size == 272_474 + 90 // 6 * 2 * sum(
        9 * c * c + 2 * c for c in (16, 32, 64)
    )


@pytest.mark.parametrize("data", active().of("datasets"))
@pytest.mark.parametrize("name", ["cnn", "mlp", "cifar_resnet20_v1"])
def test_every_model_takes_every_image(name, data):
    facts = active().of("datasets")[data].facts
    model = flat(name, data)
    assert model.network(torch.zeros(2, *facts.shape)).shape == (2, facts.classes)


def test_the_resnet_is_gluoncvs():
    network = flat("cifar_resnet20_v1").network.eval()
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}
    assert [name for name, shape in shapes.items() if len(shape) == 1 and name.endswith("bias") and "output" in name]
    convolutions = [shape for shape in shapes.values() if len(shape) == 4]
    assert convolutions[0] == (16, 3, 3, 3)
    assert [shape[:2] for shape in convolutions if shape[2] == 1] == [(32, 16), (64, 32)]
    assert sum(shape[2] == 3 for shape in convolutions) == 19
    images = torch.randn(4, 3, 32, 32)
    assert network.stem(images).min() < 0  # no ReLU after the stem
    assert network.stages(network.stem(images)).shape == (4, 64, 8, 8)
    for norm in network.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            assert (norm.eps, norm.momentum) == (1e-5, 0.1)


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


def test_parameters_and_gradients_are_views_of_the_flat_vectors():
    model = flat("cnn", "digits")
    model.network(torch.rand(3, 1, 8, 8)).sum().backward()
    for (name, parameter), block in zip(model.network.named_parameters(), model.layout.blocks, strict=True):
        assert name == block.name
        for tensor, whole in ((parameter, model.parameters), (parameter.grad, model.gradient)):
            assert tensor.data_ptr() == whole.data_ptr() + 4 * block.offset
    assert model.gradient.abs().sum() > 0
