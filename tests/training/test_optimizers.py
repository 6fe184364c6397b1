import numpy as np
import pytest
import torch
from training_examples import make_run

from hpcps.training.pytorch.optimizers import build_optimizer

SHAPES = [(7, 3, 3, 3), (7,), (5, 11), (1,)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
CONFIGS = [
    {"name": "sgd", "momentum": 0.0},
    {"name": "sgd", "momentum": 0.9},
    {"name": "nag", "momentum": 0.9},
    {"name": "nag", "momentum": 0.9, "weight_decay": 1e-2},
    {"name": "adam", "betas": [0.8, 0.99]},
    {"name": "adam", "weight_decay": 1e-2},
]


def steps():
    """Ten gradients and learning rates, the rate changing on the way."""
    generator = np.random.default_rng(0)
    return [
        (torch.from_numpy(generator.standard_normal(SIZE).astype(np.float32)), 0.1 if number < 5 else 0.01)
        for number in range(10)
    ]


def config_of(table):
    return make_run({"name": "digits"}, optimizer=table).train.optimizer


def ours(table):
    optimizer, parameters = build_optimizer(config_of(table)), torch.linspace(-1, 1, SIZE)
    for gradient, rate in steps():
        optimizer.step(parameters, gradient, rate)
    return parameters


@pytest.mark.parametrize("table", CONFIGS, ids=str)
def test_the_flat_optimizer_equals_torch_on_separate_tensors(table):
    config = config_of(table)
    flat = torch.linspace(-1, 1, SIZE)
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    tensors = [torch.nn.Parameter(x.clone().view(shape)) for x, shape in zip(flat.split(sizes), SHAPES, strict=True)]
    theirs = (
        torch.optim.Adam(tensors, betas=config.betas, weight_decay=config.weight_decay)
        if config.name == "adam"
        else torch.optim.SGD(
            tensors, 0.1, config.momentum, weight_decay=config.weight_decay, nesterov=config.name == "nag"
        )
    )
    for gradient, rate in steps():
        theirs.param_groups[0]["lr"] = rate
        for tensor, piece in zip(tensors, gradient.split(sizes), strict=True):
            tensor.grad = piece.view(tensor.shape)
        theirs.step()
    expected = torch.cat([tensor.detach().flatten() for tensor in tensors])
    torch.testing.assert_close(ours(table), expected, rtol=1e-6, atol=1e-6)


def test_nag_against_its_formula():
    x, m = np.linspace(-1, 1, SIZE), np.zeros(SIZE)
    for gradient, rate in steps():
        g = gradient.numpy().astype(np.float64) + 1e-2 * x
        m = 0.9 * m + g
        x = x - rate * (g + 0.9 * m)
    np.testing.assert_allclose(ours(CONFIGS[3]).numpy(), x, atol=2e-6)
