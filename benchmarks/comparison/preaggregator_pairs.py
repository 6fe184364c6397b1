"""What the libraries offer for each pre-aggregator."""

from __future__ import annotations

from comparison.pair import F, Pair, of

byzfl = of("byzfl", "byzfl.aggregators.preaggregators:")
byzpy = of("byzpy", "byzpy.pre_aggregators:")

PREAGGREGATOR_PAIRS: list[Pair] = [
    byzfl("arc", "ARC", F, F, form="round"),
    byzpy("arc", "ARC", F, F, form="round"),
    byzfl(
        "bucketing",
        "Bucketing",
        {"s": "=n"},
        {"size": "=n"},
        form="round",
        note="It draws the order from numpy's global random generator, so one bucket of all updates is compared.",
    ),
    byzpy(
        "bucketing",
        "Bucketing",
        {"bucket_size": 2, "perm": "=order"},
        {"size": 2},
        form="round",
        note="With the order that hpcps draws.",
    ),
    byzfl("clipping", "Clipping", {"c": 50.0}, {"radius": 50.0}, form="round"),
    byzpy("clipping", "Clipping", {"threshold": 50.0}, {"radius": 50.0}, form="round"),
    byzfl("nnm", "NNM", F, F, form="round"),
    byzpy("nnm", "NearestNeighborMixing", F, F, form="round"),
]
"""The pairs of pre-aggregators."""
