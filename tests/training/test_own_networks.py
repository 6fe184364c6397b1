"""Any network with one input tensor and float32 parameters is trained, on its own loss if it defines one."""

from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from training_examples import parameters

from hpcps.data import Data, Facts, InMemory, Samples
from hpcps.errors import SpecError
from hpcps.models import Model
from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer


class Points(Data):
    """Points around the centre of their class, of a shape that is no image's."""

    facts: ClassVar[Facts] = Facts(shape=(2, 10), classes=4, train=320, test=90, mean=(0.5, -0.5), std=(2.0,))
    name: Literal["points"] = "points"

    def open(self):
        random = np.random.default_rng(0)
        labels = random.integers(0, 4, 410, dtype=np.int32)
        points = random.normal(size=(4, 2, 10))[labels] + random.normal(size=(410, 2, 10))
        samples = Samples(points.astype(np.float32), labels)
        return InMemory(samples.take(slice(0, 320))), InMemory(samples.take(slice(320, None)))


class Own(Model):
    """A network that a test makes; it is one that likes images with channels last."""

    channels_last: ClassVar[bool] = True
    make: ClassVar = None
    name: Literal["own"] = "own"

    def build(self, shape, classes):
        return type(self).make()


def linear(loss=None):
    network = nn.Sequential(nn.Flatten(), nn.Linear(20, 4))
    if loss is not None:
        network.loss = loss
    return network


def trainer(make, optimizer="sgd"):
    steps = {"name": optimizer, "lr": 0.05, "momentum": 0.0}
    train = {"epochs": 1, "batch_size": 8, "device": "cpu", "optimizer": steps}
    model = type("Made", (Own,), {"make": staticmethod(make), "__module__": __name__})()
    table = {"name": "own", "topology": {"workers": 3}, "model": model, "data": Points(), "train": train}
    return build_trainer(Run.model_validate(table), "worker", 0)


def largest(outputs, labels):
    """A mean loss that no sample has a part of its own in."""
    return (outputs.max() - outputs.gather(1, labels[:, None]).min()) ** 2


def squared(outputs, labels):
    return ((outputs - functional.one_hot(labels, 4)) ** 2).mean()


LOSSES = {None: functional.cross_entropy, largest: largest, squared: squared}
BY_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=["cross_entropy", "largest", "squared"])


def by_hand(loss, values, batch):
    """Return the loss of a linear model `[d]` on a batch, and its gradient."""
    samples, labels = map(torch.from_numpy, batch)
    flat = torch.from_numpy(values).requires_grad_()
    outputs = samples.flatten(1) @ flat[:80].view(4, 20).T + flat[80:]
    mean = LOSSES[loss](outputs, labels)
    mean.backward()
    return mean.item(), flat.grad.numpy()


@BY_LOSS
def test_steps_follow_its_gradient_and_progress_is_the_loss_of_each_batch(loss):
    one, other = trainer(lambda: linear(loss)), trainer(lambda: linear(loss))
    values, losses = parameters(other), []
    for _ in range(3):
        mean, gradient = by_hand(loss, values, next(other._stream))
        losses.append(mean)
        values -= np.float32(0.05) * gradient
    assert one.train(3).loss == pytest.approx(np.mean(losses), rel=1e-5)
    np.testing.assert_allclose(parameters(one), values, rtol=1e-4, atol=1e-6)
    assert one.observe(1).loss == pytest.approx(by_hand(loss, values, next(other._stream))[0], rel=1e-4)


@BY_LOSS
def test_it_is_measured_everywhere(loss):
    one = trainer(lambda: linear(loss))
    one.train(2)
    values = parameters(one)
    assert one.loss_on(5)(values) == pytest.approx(by_hand(loss, values, one._stream.draw(5))[0], rel=1e-5)
    test = Points().open()[1].samples
    normalised = (test.images - np.float32([[0.5], [-0.5]])) / np.float32(2)
    expected, _ = by_hand(loss, values, (normalised, test.labels.astype(np.int64)))
    assert one.evaluate().loss == pytest.approx(expected, rel=1e-5)
    one.evaluator.copy_from(values)
    assert one.evaluator.evaluate() == one.evaluate()


def test_a_loss_may_have_parameters_which_are_trained():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat, self.linear, self.centres = nn.Flatten(), nn.Linear(20, 4), nn.Parameter(torch.zeros(4, 4))

        def forward(self, samples):
            return self.linear(self.flat(samples))

        def loss(self, outputs, labels):
            return (outputs - self.centres[labels]).square().mean()

    one = trainer(Scaled)
    assert [block.name for block in one.layout.blocks] == ["centres", "linear.weight", "linear.bias"]
    before = parameters(one)
    one.train(1)
    assert (parameters(one)[:16] != before[:16]).any()


def normed(*layers):
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 6), *layers, nn.Linear(6, 4))


def test_scales_of_normalisation_layers_begin_as_one():
    norms = {
        "layer": lambda: normed(nn.LayerNorm(6)),
        "batch": lambda: normed(nn.BatchNorm1d(6)),
        "group": lambda: normed(nn.GroupNorm(2, 6)),
    }
    for name, make in norms.items():
        one = trainer(make)
        (scale,) = (block for block in one.layout.blocks if block.name == "2.weight")
        assert (parameters(one)[scale.offset : scale.stop] == 1).all(), name


def test_statistics_of_batchnorm_of_any_dimension_are_known():
    one = trainer(lambda: normed(nn.BatchNorm1d(6)))
    assert one.statistics.tolist() == [0] * 6 + [1] * 6
    one.train(3)
    before = one.statistics
    one.reestimate_statistics()
    assert (one.statistics != before).all()
    other = trainer(lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(20, 4)))
    other.reestimate_statistics()
    batches = np.stack([samples for samples, _ in other._stream.sweep()])
    np.testing.assert_allclose(other.statistics[:2], batches.mean((0, 1, 3)), rtol=1e-4, atol=1e-5)


def test_statistics_are_reestimated_without_dropout():
    """They are for the test, where nothing is dropped; and another thread may use torch's generator meanwhile."""
    norm = {"affine": False}
    plain = trainer(lambda: normed(nn.BatchNorm1d(6, **norm)))
    dropping = trainer(lambda: normed(nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6, **norm))))
    dropping.copy_from(parameters(plain))
    for one in (plain, dropping):
        one.reestimate_statistics()
    assert np.array_equal(plain.statistics, dropping.statistics)


def test_layers_that_look_at_the_first_batch_for_their_shape_work():
    assert trainer(lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(4))).layout.size == 84


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: linear().double(), "parameters that are not float32: 1.weight (float64), 1.bias (float64)"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 5)), r"\[2, 5\] for samples \[2, 2, 10\].* here \[2, 4\]"),
        (lambda: nn.Linear(10, 4), r"returns a tensor \[2, 2, 4\] for samples"),
        (lambda: linear(lambda outputs, labels: outputs.sum(1)), r"its loss\(.*\) returned a tensor \[2\]"),
    ],
    ids=["float64", "classes", "dimensions", "loss"],
)  # fmt: skip
def test_a_network_that_cannot_be_trained_is_an_error_that_names_the_model(make, expected):
    with pytest.raises(SpecError, match="^Made: .*" + expected.replace("(float64)", r"\(float64\)")):
        trainer(make)


def test_muon_is_refused_for_a_network_without_hidden_layers():
    with pytest.raises(SpecError, match=r'^Made: .*"muon" is for the matrices of hidden layers.* use "adamw"'):
        trainer(linear, "muon")
    trainer(lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 6), nn.Linear(6, 4)), "muon").train(1)
