"""Prints what a learner of a backend does, as JSON: `python learner_facts.py BACKEND BATCH`; for test_backends.py.

In MXNet's environment there is no torch, so each backend runs this in its own.
"""

import json
import sys

import numpy as np
from training_examples import make_run

from hpcps.training.build import build_learner

SYNTHETIC = {"name": "synthetic", "limit": 1920, "test_limit": 32, "shards": 3}


def learner(backend, model="cifar_resnet20_v1", data=SYNTHETIC, **train):
    train = {"batch_size": 32, "optimizer": {"name": "nag", "lr": 0.001}, **train}
    run = make_run(data, model=model, workers=2, **train)
    return build_learner(
        run.model_copy(update={"model": run.model.model_copy(update={"backend": backend})}), "worker", 0
    )


def parameters(one):
    out = np.empty(one.layout.size, dtype=np.float32)
    one.copy_to(out)
    return out


def losses(one, steps=6):
    return [one.train(1).loss for _ in range(steps)]


def resnet(backend, batch_size):
    """6 steps; then the evaluation must be of those weights and leave them alone.

    A few ReLUs of millions have an input so near 0 that rounding decides its sign, and each changes the gradient. The
    more images in a batch, the less one counts: of 32, seeds 1 to 3 give losses 0.5e-4 to 1.5e-4 apart, of 128, 0.05e-4
    to 0.09e-4. Momentum of 0.9 would add these up.
    """
    one = learner(backend, batch_size=batch_size, optimizer={"name": "sgd", "lr": 0.001, "momentum": 0.0})
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
    one = learner(backend, "cnn", digits, lr_decay={"factor": 0.1, "epochs": [1]}, **train)
    anchor = parameters(one)
    curve = [*losses(one, 5), one.train(2, anchor=anchor, pull=0.3).loss, one.train(2, epoch=1).loss]
    state = one.state()
    on = losses(one, 4)
    again = learner(backend, "cnn", digits, lr_decay={"factor": 0.1, "epochs": [1]}, **train)
    again.restore(state)
    return {"losses": [*curve, *on], "resumed": losses(again, 4) == on, "evaluation": one.evaluate().accuracy}


backend, batch = sys.argv[1], int(sys.argv[2])
optimizers = [
    {"name": "nag", "lr": 0.05, "weight_decay": 1e-3},
    {"name": "sgd", "lr": 0.05},
    {"name": "adam", "lr": 0.001, "weight_decay": 1e-3},
]
print(json.dumps({"resnet": resnet(backend, batch), "small": [small(backend, optimizer=one) for one in optimizers]}))
