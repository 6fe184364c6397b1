import pytest
from training_examples import make_run

from hpcps.training.schedule import learning_rate


def rates(steps, per_epoch, **train):
    train = make_run({"name": "digits"}, **train).train
    return [learning_rate(train, step, per_epoch) for step in steps]


def test_decay_at_n_holds_from_the_epoch_after_on():
    decay = {"optimizer": {"lr": 0.2}, "lr_decay": {"factor": 0.1, "epochs": [2, 3]}}
    expected = pytest.approx([0.2, 0.2, 0.02, 0.02, 0.002, 0.002])
    assert rates([0, 2 * 91 - 1, 2 * 91, 3 * 91 - 1, 3 * 91, 1000], 91, **decay) == expected


def test_without_decay_the_rate_stays():
    assert rates([0, 10_000], 5, optimizer={"lr": 0.3}) == [0.3, 0.3]


def test_warm_up_is_linear_and_multiplies_decay():
    warm = {"optimizer": {"lr": 1.0}, "warmup": {"epochs": 2, "start": 0.2}}
    assert rates([0, 5, 10, 19, 20, 50], 10, **warm) == pytest.approx([0.2, 0.4, 0.6, 0.96, 1, 1])
    both = {**warm, "lr_decay": {"factor": 0.5, "epochs": [1]}}
    assert rates([9, 10, 20], 10, **both) == pytest.approx([0.56, 0.3, 0.5])
