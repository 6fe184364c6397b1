"""The keys that `fidelity` sets; values in the file override them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcps.spec.tree import Tree, get, put

Path = tuple[str, ...]


@dataclass(frozen=True)
class Derived:
    """A value that follows from other keys.

    Attributes:
        words: its description for the reference.
        of: computes it from the tree; returns None if the keys that it depends on are missing or wrong.
    """

    words: str
    of: Callable[[Tree], Any]


def _decay_epochs(tree: Tree) -> list[Any] | None:
    epochs = get(tree, ("train", "lr_decay", "epochs"))
    return epochs if isinstance(epochs, list) else None


def _first_decay_epoch(tree: Tree) -> list[Any] | None:
    epochs = _decay_epochs(tree)
    return None if epochs is None else epochs[:1]


def _workers_seconds(tree: Tree) -> dict[str, Any] | None:
    workers = get(tree, ("topology", "workers"))
    usable = isinstance(workers, int) and workers > 0
    return {"kind": "uniform", "low": 0.0, "high": float(workers)} if usable else None


PRESETS: Mapping[str, Mapping[Path, Any]] = {
    "artifact": {
        ("validation", "evaluate"): "validator_model",
        ("validation", "batchnorm"): "validator",
        ("train", "first_step"): "overwritten",
    },
    "corrected": {
        ("validation", "evaluate"): "global_model",
        ("validation", "batchnorm"): "reestimated",
        ("train", "first_step"): "counted",
    },
}

ASYNC_PRESETS: Mapping[str, Mapping[Path, Any]] = {
    "artifact": {
        ("asynchronous", "absent"): "accumulate",
        ("asynchronous", "updates_per_refresh"): "share",
        ("asynchronous", "epochs"): "own",
        ("asynchronous", "proximal", "worker"): 0.2,
        ("asynchronous", "proximal", "validator"): 0.2,
        ("asynchronous", "alpha_decay", "epochs"): Derived("the first of `train.lr_decay.epochs`", _first_decay_epoch),
        ("train", "lr_decay", "validator_epochs"): Derived("the first of `train.lr_decay.epochs`", _first_decay_epoch),
        ("train", "lr_scale"): "sqrt_workers",
        ("heterogeneity", "delay"): Derived("uniform from 0 to `topology.workers` seconds", _workers_seconds),
    },
    "corrected": {
        ("asynchronous", "absent"): "accumulate",
        ("asynchronous", "updates_per_refresh"): "queued",
        ("asynchronous", "epochs"): "validator",
        ("asynchronous", "alpha_decay", "epochs"): Derived("`train.lr_decay.epochs`", _decay_epochs),
    },
}
"""The keys that a preset sets in addition with `train.mode = "async"`; other keys keep their defaults."""


def expand(tree: Tree) -> Tree:
    """Return the tree with the keys of its preset, except those that it sets."""
    fidelity = tree.get("fidelity", "corrected")
    if not isinstance(fidelity, str):
        return tree
    tree = _set(tree, PRESETS.get(fidelity, {}))
    if get(tree, ("train", "mode")) == "async":
        tree = _set(tree, ASYNC_PRESETS.get(fidelity, {}))
    return tree


def _set(tree: Tree, preset: Mapping[Path, Any]) -> Tree:
    for path, value in preset.items():
        # A value that should be a table is a mistake: report it, do not replace it.
        around = (get(tree, path[:depth]) for depth in range(1, len(path)))
        if get(tree, path) is None and all(table is None or isinstance(table, dict) for table in around):
            value = value.of(tree) if isinstance(value, Derived) else value
            if value is not None:
                tree = put(tree, path, value)
    return tree
