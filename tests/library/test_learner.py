"""One worker in a notebook cell."""

from pathlib import Path

import numpy as np
import pytest
from small import small

import hpcps
from hpcps.training.build import build_trainer

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"


def test_it_learns():
    learner = hpcps.Learner("mlp", "digits", batch_size=32, lr=0.1)
    assert learner.steps_per_epoch == 1437 // 32
    before = learner.evaluate().accuracy
    progress = learner.train(10)
    assert (progress.steps, progress.samples, learner.steps) == (10, 320, 10)
    assert progress.accuracy == progress.correct / 320
    assert learner.train().steps == learner.steps_per_epoch
    assert learner.evaluate().accuracy > max(before, 0.8)
    assert learner.train(1).loss < progress.loss


def test_it_takes_a_model_and_data_of_plugins():
    files = [PLUGINS / "my_model.py", PLUGINS / "my_data.py"]
    learner = hpcps.Learner("my_model", {"name": "my_data", "noise": 0.5}, plugins=files, shards=2)
    learner.train()
    assert learner.evaluate().accuracy > 0.8


def test_updates_of_workers_for_a_rule():
    workers = [hpcps.Learner("mlp", "digits", batch_size=16, shard=k, shards=4) for k in range(4)]
    start = workers[0].model
    assert all(np.array_equal(worker.model, start) for worker in workers)
    for worker in workers:
        worker.train(5)
    updates = np.stack([worker.model - start for worker in workers])
    assert not np.array_equal(updates[0], updates[1])
    combined = hpcps.registry.rules["zeno"](rho=-1)(updates[1:], blocks=workers[0].blocks, reference=updates[0])
    workers[0].model = start + combined
    np.testing.assert_array_equal(workers[0].model, start + combined)
    with pytest.raises(ValueError, match="model has 3 elements"):
        workers[0].model = np.zeros(3)


def test_it_is_the_worker_of_a_run():
    point = hpcps.load(small()).points[0]
    ours, theirs = hpcps.Learner.of(point, worker=2), build_trainer(point.run, "worker", 2)
    assert ours.train(3) == theirs.train(3)
    expected = np.empty(theirs.layout.size, np.float32)
    theirs.copy_to(expected)
    np.testing.assert_array_equal(ours.model, expected)
    with pytest.raises(hpcps.SpecError, match="no worker or shard 3: they go from 0 to 2"):
        hpcps.Learner.of(point, worker=3)


def test_steps_are_counted_from_zero():
    learner = hpcps.Learner("mlp", "digits")
    with pytest.raises(ValueError, match="steps must be a whole number from 0, not -1"):
        learner.train(-1)
    assert learner.steps == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "mpl"}, "model.name: expects"),
        ({"lr": -1.0}, "train.optimizer.lr: expects a number > 0"),
        ({"batch_size": 5000}, "train.batch_size"),
        ({"data": {"name": "digits", "limt": 3}}, "data.limt: unknown key: did you mean limit?"),
        ({"train": {"local_step": 3}}, "train.local_step: unknown key: did you mean local_steps?"),
        ({"shard": 1}, "no worker or shard 1"),
    ],
)
def test_errors_name_the_key(arguments, words):
    with pytest.raises(hpcps.SpecError) as error:
        hpcps.Learner(**{"model": "mlp", "data": "digits", **arguments})
    assert words in str(error.value)
