"""What `fidelity` stands for: ordinary keys, which count under what the file sets itself."""

from __future__ import annotations

from typing import Any

from hpcps.spec.tree import get, put

PRESETS: dict[str, dict[tuple[str, ...], str]] = {
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


def expand(tree: dict[str, Any]) -> None:
    """Set, in place, the keys of the tree's preset that the tree does not set itself."""
    fidelity = tree.get("fidelity", "corrected")
    preset = PRESETS.get(fidelity, {}) if isinstance(fidelity, str) else {}
    for path, value in preset.items():
        if get(tree, path) is None and isinstance(tree.get(path[0], {}), dict):
            put(tree, path, value)
