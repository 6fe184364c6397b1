"""The libraries that are compared, and those that cannot be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library on PyPI.

    Attributes:
        name: its name on PyPI.
        version: the version that is compared.
        title: its name in the text.
        note: how its code is loaded here, if not by a plain import.
        inventory: the modules whose public classes and functions are its rules, attacks and pre-aggregators.
        options: further options of pip.
    """

    name: str
    version: str
    title: str
    note: str
    inventory: tuple[str, ...]
    options: tuple[str, ...] = ()


_SHELL = "Its top-level package is not run, because it imports packages that the rules do not need"

LIBRARIES = {
    library.name: library
    for library in [
        Library(
            "byzfl",
            "0.0.11",
            "ByzFL",
            f"{_SHELL} (torchvision).",
            ("byzfl.aggregators.aggregators", "byzfl.aggregators.preaggregators", "byzfl.attacks.attacks"),
        ),
        Library(
            "byzpy",
            "0.1.4",
            "ByzPy",
            "It works in torch even on numpy arrays, so it gets float64 tensors.",
            (
                *(f"byzpy.aggregators.{name}_wise" for name in ("coordinate", "geometric", "norm")),
                "byzpy.pre_aggregators",
                "byzpy.attacks",
            ),
        ),
        Library(
            "flwr",
            "1.42.0",
            "Flower",
            f"{_SHELL} (grpcio, httpx, sqlalchemy, …), so its message classes are replaced by plain dictionaries and "
            "lists. All clients have the same number of examples.",
            (
                "flwr.server.strategy.aggregate",
                "flwr.serverapp.strategy.multikrum",
                "flwr.serverapp.strategy.bulyan",
                "flwr.serverapp.strategy.fedtrimmedavg",
            ),
        ),
        Library(
            "krum",
            "0.9.1",
            "krum",
            "It asks for Python 3.12; its rules and attacks also run on the Python above.",
            (
                *(
                    f"krum.primitives.aggregators.{name}"
                    for name in [
                        "average",
                        "median",
                        "trimmed_mean",
                        "krum",
                        "multikrum",
                        "bulyan",
                        "aksel",
                        "brute",
                        "medoid",
                        "geometric_median",
                        "nearest_neighbor_average",
                    ]
                ),
                *(
                    f"krum.primitives.attacks.{name}"
                    for name in ("alie", "gaussian", "sign_flip", "full_gradient_negation", "small_perturbation")
                ),
            ),
            ("--ignore-requires-python",),
        ),
        Library(
            "fedml",
            "0.9.6",
            "FedML",
            f"{_SHELL} (multiprocess, wandb, …). All clients have the same number of samples. It gets float64 tensors.",
            tuple(
                f"fedml.core.security.defense.{name}_defense"
                for name in [
                    "coordinate_wise_median",
                    "coordinate_wise_trimmed_mean",
                    "krum",
                    "bulyan",
                    "geometric_median",
                    "cclip",
                    "norm_diff_clipping",
                    "robust_learning_rate",
                ]
            ),
        ),
        Library(
            "fed-playground",
            "0.2.1",
            "fed-playground",
            "",
            ("fed_playground.src.aggregation", "fed_playground.src.attacks"),
        ),
        Library("geom-median", "0.1.0", "geom-median", "", ("geom_median.numpy",)),
        Library(
            "flwr-attacks",
            "0.1.4",
            "flwr-attacks",
            "Its functions on arrays, loaded without Flower.",
            ("flwr_attacks.algorithms",),
        ),
    ]
}
"""The compared libraries by their names."""

NOT_COMPARED = {
    "blades 0.1.1234": "its package on PyPI has no rules, and its attacks import `fllib`, which PyPI does not have, "
    "and Ray.",
    "acfa-flower 0.2.0": "its rules are a Rust program that the package does not contain.",
    "plato-learn 1.41": "the package has no robust rules or attacks; they are in the examples of its repository.",
    "fedlab 1.3.0, easyfl 0.1.2": "their packages have no robust rules or attacks.",
    "Garfield, epfml's optimizers, FL-Byzantine-Library": "PyPI does not have them.",
}
"""Libraries that install or exist, but cannot be run here."""
