"""The text of a small experiment, which takes a second in one process."""

import json

from installed import BACKEND

KEYS = {
    "topology.workers": 2,
    "transport.kind": "inproc",
    "model.name": "mlp",
    "model.backend": BACKEND,
    "data.name": "digits",
    "data.limit": 160,
    "data.test_limit": 32,
    "train.epochs": 2,
    "train.batch_size": 8,
}


def small_experiment(name, keys=None, tables=""):
    """Return the text of an experiment file; `keys` replace those above, and `tables` follow them, such as sweeps."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"name": name, **KEYS, **(keys or {})}.items()]
    return "\n".join([*lines, tables])
