"""What a network draws depends on the seed, the role and the step: not on other trainers of the process."""

import numpy as np
import torch
from training_examples import make_run

from hpcps.training.build import build_trainer

DROPPING = {"name": "mlp", "dropout": 0.4}


def trainer(index=0, role="worker", **options):
    return build_trainer(make_run({"name": "digits"}, model=DROPPING, **options), role, index)


def watched(one):
    """Return a list that gets the mask of the first dropout in each pass."""
    masks = []
    layer = one._model.network.relu1
    layer.register_forward_hook(lambda module, inputs, out: masks.append((out != 0) | (inputs[0] <= 0)))
    return masks


def parameters(one):
    out = np.empty(one.layout.size, np.float32)
    one.copy_to(out)
    return out


def test_trainers_of_one_process_do_not_affect_each_other():
    alone = [trainer(index) for index in range(2)]
    expected = [[one.train(1).loss for _ in range(4)] for one in alone]
    together = [trainer(index) for index in range(2)]
    found = [[], []]
    for _ in range(4):
        for index, one in enumerate(together):
            torch.rand(3)  # another user of torch's generator
            found[index].append(one.train(1).loss)
    assert found == expected
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(parameters(one), parameters(other))


def test_masks_differ_by_step_role_and_seed():
    masks = []
    for one in (trainer(), trainer(1), trainer(role="validator"), trainer(seed=2)):
        seen = watched(one)
        one.train(3)
        masks += seen
    assert len({mask.numpy().tobytes() for mask in masks}) == 12
    kept = np.mean([(mask.float().mean()) for mask in masks])
    assert kept > 0.6, "0.6 of the active values, and all others"
    assert kept < 0.9


def test_masks_go_on_from_a_checkpoint():
    one, other = trainer(), trainer()
    one.train(3)
    other.restore(one.state())
    assert one.train(2) == other.train(2)
    assert np.array_equal(parameters(one), parameters(other))
    other.restore(one.state())
    one._step_seed = lambda number: number
    assert one.train(2) != other.train(2)


def test_only_training_drops():
    one = trainer()
    masks = watched(one)
    one.evaluate()
    one.loss_on(3)(parameters(one))
    assert len(masks) == 3
    assert all(mask.all() for mask in masks)
