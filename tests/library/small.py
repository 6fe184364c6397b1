"""A small experiment: two runs of two epochs on digits, a second each."""

from typing import Any


def small(**tables: Any) -> dict[str, Any]:
    """Return the experiment; `tables` change it."""
    experiment: dict[str, Any] = {
        "name": "small",
        "topology": {"workers": 3},
        "transport": {"kind": "inproc"},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 480, "test_limit": 60},
        "train": {"epochs": 2, "batch_size": 16, "local_steps": 3, "optimizer": {"lr": 0.05}, "device": "cpu"},
        "communication": {"skip_rate": 0.3},
        "validation": {"rule": {"kind": "zeno"}},
    }
    for table, values in tables.items():
        inner = experiment.get(table)
        experiment[table] = {**inner, **values} if isinstance(inner, dict) and isinstance(values, dict) else values
    return experiment
