"""A trainer tells the loss of any model on a batch of its shard, and does not change by it."""

import numpy as np
import pytest
from installed import BACKEND
from training_examples import parameters

from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer

MODELS = {"mlp": {"name": "digits", "limit": 320}, "cifar_resnet20_v1": {"name": "synthetic", "limit": 96}}


def trainer(model):
    return build_trainer(
        Run.model_validate({
            "name": "loss",
            "topology": {"workers": 2},
            "model": {"name": model, "backend": BACKEND},
            "data": MODELS[model],
            "train": {"epochs": 1, "batch_size": 8, "optimizer": {"lr": 0.05}},
        }),
        "validator",
        0,
    )  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_nothing_changes(model):
    asked, other = trainer(model), trainer(model)
    for one in (asked, other):
        one.train(2)
    before, statistics = parameters(asked), asked.statistics
    loss = asked.loss_on(5)
    assert loss(before) == loss(before) != loss(1.1 * before)
    assert np.array_equal(parameters(asked), before)
    assert np.array_equal(asked.statistics, statistics)
    assert asked.train(3) == other.train(3)
    assert np.array_equal(parameters(asked), parameters(other))
    assert np.array_equal(asked.statistics, other.statistics)
    assert asked.state().facts == other.state().facts


@pytest.mark.parametrize("model", MODELS)
def test_each_number_is_a_batch_of_its_own_whatever_was_trained(model):
    one, other = trainer(model), trainer(model)
    start = parameters(one)
    losses = [one.loss_on(number)(start) for number in range(4)]
    if not one.statistics.size:
        other.train(3)
    assert [other.loss_on(number)(start) for number in range(4)] == losses
    assert len(set(losses)) == 4


def test_it_is_the_cross_entropy_of_samples_of_the_shard():
    one = trainer("mlp")
    one.copy_from(np.zeros(one.layout.size, np.float32))
    assert one.loss_on(1)(parameters(one)) == pytest.approx(np.log(10))
    one = trainer("mlp")
    start = parameters(one)
    one.train(one.steps_per_epoch * 20)
    assert one.loss_on(1)(parameters(one)) < 0.5 * one.loss_on(1)(start)


def test_what_is_not_finite_is_infinite():
    one = trainer("mlp")
    assert one.loss_on(0)(np.full(one.layout.size, np.nan, np.float32)) == np.inf
