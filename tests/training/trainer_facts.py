"""Prints what a trainer of a backend does, as JSON: `python trainer_facts.py BACKEND`; for test_backends.py.

In MXNet's environment there is no torch, so each backend runs this in its own.
"""

import json
import sys

import numpy as np
from training_examples import make_run, parameters

from hpcps.training.build import build_trainer

SYNTHETIC = {"name": "synthetic", "limit": 1920, "test_limit": 32, "shards": 3}


def trainer(backend, model="cifar_resnet20_v1", data=SYNTHETIC, **train):
    train = {"batch_size": 32, "optimizer": {"name": "nag", "lr": 0.001}, **train}
    run = make_run(data, model=model, workers=2, **train)
    return build_trainer(
        run.model_copy(update={"model": run.model.model_copy(update={"backend": backend})}), "worker", 0
    )


def losses(one, steps=6):
    return [one.train(1).loss for _ in range(steps)]


def resnet(backend):
    """6 steps; then the evaluation must be of those weights and leave them alone.

    A few ReLUs of millions have an input so near 0 that rounding decides its sign, and each changes the gradient: seeds
    1 to 3 give losses 0.5e-4 to 1.5e-4 apart. Momentum of 0.9 would add these up.
    """
    one = trainer(backend, optimizer={"name": "sgd", "lr": 0.001, "momentum": 0.0})
    first = parameters(one)
    curve = losses(one)
    before, statistics = parameters(one), one.statistics
    measured = [one.evaluate().loss for _ in range(2)]
    kept = bool(np.array_equal(parameters(one), before) and np.array_equal(one.statistics, statistics))
    after = losses(one, 1)
    one.copy_from(before)
    seen = one.observe(1)
    moved = not np.array_equal(one.statistics, statistics)
    observed = bool(np.array_equal(parameters(one), before))
    one.reestimate_statistics()
    return {
        "first": [float(first.sum(dtype=np.float64)), float(np.abs(first).sum(dtype=np.float64))],
        "sizes": [one.layout.size, len(statistics)],
        "losses": curve,
        "evaluations": measured,
        "evaluation_kept": kept,
        "after": after,
        "observed": [seen.loss, moved, observed],
        "reestimated": float(np.abs(one.statistics).sum(dtype=np.float64)),
    }


def small(backend, **train):
    digits = {"name": "digits"}
    one = trainer(backend, "cnn", digits, lr_decay={"factor": 0.1, "epochs": [1]}, **train)
    anchor = parameters(one)
    curve = [*losses(one, 5), one.train(2, anchor=anchor, pull=0.3).loss, one.train(2, epoch=1).loss]
    state = one.state()
    on = losses(one, 4)
    again = trainer(backend, "cnn", digits, lr_decay={"factor": 0.1, "epochs": [1]}, **train)
    again.restore(state)
    return {"losses": [*curve, *on], "resumed": losses(again, 4) == on, "evaluation": one.evaluate().accuracy}


backend = sys.argv[1]
optimizers = [
    {"name": "nag", "lr": 0.05, "weight_decay": 1e-3},
    {"name": "sgd", "lr": 0.05},
    {"name": "adam", "lr": 0.001, "weight_decay": 1e-3},
]
print(json.dumps({"resnet": resnet(backend), "small": [small(backend, optimizer=one) for one in optimizers]}))
