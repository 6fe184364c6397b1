"""What the libraries have beside the compared functions: why each of them is not compared."""

NOT_THERE = "hpcps does not have it"
PART = "a part of, or another way to call, what is compared"

LEFT_OUT = {
    "byzfl": {
        "LabelFlipping": "it returns the mean of what it is given: the caller flips the labels",
    },
    "byzpy": {
        "LabelFlipAttack": "it computes gradients of a model, and changes no update",
    },
    "flwr": {
        **dict.fromkeys(["MultiKrum", "aggregate_inplace", "aggregate_n_closest_weights", "compute_distances"], PART),
        "FedTrimmedAvg": PART,
        "aggregate_qffl": NOT_THERE,
        "weighted_loss_avg": "it combines losses, not updates",
    },
    "krum": {
        "Medoid": NOT_THERE,
        "Direction": PART,
        "SmallPerturbationAttack": NOT_THERE,
    },
    "fed-playground": {
        "MedianOfMeansAggregation": NOT_THERE,
        "NoAttack": PART,
    },
    "flwr-attacks": dict.fromkeys(
        ["attack_fedmedian", "attack_krum", "attack_multikrum", "attack_trimmedmean", "brute_attack"], NOT_THERE
    ),
}
"""For each library, the names that no pair calls."""


def check(library: str, inventory: dict[str, list[str]], called: set[str]) -> None:
    """Check that every name of a library is compared or left out, but not both.

    Raises:
        ValueError: a name is missing in the pairs and here, or is in both, or is not in the library.
    """
    there = {name for names in inventory.values() for name in names}
    left = set(LEFT_OUT.get(library, {}))
    for what, names in {
        "neither compared nor left out": there - called - left,
        "compared and left out": called & left,
        "left out, and not in the library": left - there,
    }.items():
        if names:
            raise ValueError(f"{library}: {', '.join(sorted(names))}: {what}; see comparison/left_out.py")
