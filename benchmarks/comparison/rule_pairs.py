"""What the libraries offer for each rule."""

from __future__ import annotations

from comparison.pair import F, Pair, of

byzfl = of("byzfl", "byzfl.aggregators.aggregators:")
coordinate = of("byzpy", "byzpy.aggregators.coordinate_wise:")
geometric = of("byzpy", "byzpy.aggregators.geometric_wise:")
norm = of("byzpy", "byzpy.aggregators.norm_wise:")
flower = of("flwr", "flwr.server.strategy.aggregate:")
flower_app = of("flwr", "flwr.serverapp.strategy.")
krum = of("krum", "krum.primitives.aggregators.")
fedml = of("fedml", "fedml.core.security.defense.")
playground = of("fed-playground", "fed_playground.src.aggregation:")

N_F = {"n": "=n", "f": "=f"}
KRUM_1 = {"f": "=f", "neighbours": "n-f-1"}
EPSILON = {"smoothing": 1e-6, "iterations": 100, "tolerance": 0.0}

RULE_PAIRS: list[Pair] = [
    byzfl("average", "Average"),
    flower("average", "aggregate"),
    krum("average", "average:Average"),
    playground("average", "MeanAggregation"),
    byzfl("median", "Median"),
    coordinate("median", "CoordinateWiseMedian", {}, {"middle": "lower"}),
    flower("median", "aggregate_median"),
    krum("median", "median:Median"),
    fedml(
        "median",
        "coordinate_wise_median_defense:CoordinateWiseMedianDefense",
        {},
        {"middle": "lower"},
    ),
    playground("median", "MedianAggregation"),
    byzfl("trimmed_mean", "TrMean", F, F),
    coordinate("trimmed_mean", "CoordinateWiseTrimmedMean", F, F),
    flower("trimmed_mean", "aggregate_trimmed_avg", {"proportiontocut": 0.2}, {"trim": 0.2}),
    flower_app("trimmed_mean", "fedtrimmedavg:trim_mean", {"cut_fraction": 0.2}, {"trim": 0.2}),
    krum("trimmed_mean", "trimmed_mean:TrimmedMean", F, F),
    fedml(
        "trimmed_mean",
        "coordinate_wise_trimmed_mean_defense:CoordinateWiseTrimmedMeanDefense",
        {"beta": 0.2},
        {"trim": 0.2},
        note="It drops whole clients, in the order of their numbers of samples, and no values per coordinate.",
    ),
    playground("trimmed_mean", "TrimmedMeanAggregation", {"trim_fraction": 0.2}, {"trim": 0.2}),
    byzfl("meamed", "Meamed", F, F),
    coordinate("meamed", "MeanOfMedians", F, {**F, "middle": "lower"}),
    byzfl("krum", "Krum", F, KRUM_1),
    byzfl("krum", "Krum", F, F, note="The default of hpcps counts the neighbours of the paper."),
    geometric("krum", "Krum", F, KRUM_1),
    flower("krum", "aggregate_krum", {"num_malicious": "=f", "to_keep": 0}, F),
    flower_app(
        "krum",
        "multikrum:select_multikrum",
        {"num_malicious_nodes": "=f", "num_nodes_to_select": 1},
        F,
        note="Its distances are |x|² + |y|² − 2 x·y, which is not 0 between equal rows.",
    ),
    krum("krum", "krum:Krum", N_F, F),
    fedml("krum", "krum_defense:KrumDefense", {"byzantine_client_num": "=f"}, F),
    playground("krum", "KrumAggregation", {"n_byzantine": "=f"}, F),
    byzfl("multi_krum", "MultiKrum", F, KRUM_1),
    geometric("multi_krum", "MultiKrum", {"f": "=f", "q": "=n-f"}, KRUM_1),
    flower("multi_krum", "aggregate_krum", {"num_malicious": "=f", "to_keep": "=n-f"}, F),
    flower_app(
        "multi_krum",
        "multikrum:select_multikrum",
        {"num_malicious_nodes": "=f", "num_nodes_to_select": "=n-f"},
        F,
    ),
    krum("multi_krum", "multikrum:MultiKrum", {**N_F, "m": "=n-f"}, F),
    krum(
        "multi_krum",
        "multikrum:MultiKrum",
        N_F,
        {"f": "=f", "m": "=max(1,n-2*f-3)"},
        note="Its default m is n - 2 f - 3, ours n - f.",
    ),
    fedml("multi_krum", "krum_defense:KrumDefense", {"byzantine_client_num": "=f", "krum_param_m": 2}, {**F, "m": 2}),
    playground("multi_krum", "KrumAggregation", {"n_byzantine": "=f", "n_selected": "=n-f"}, F),
    flower(
        "bulyan", "aggregate_bulyan", {"num_malicious": "=f", "aggregation_rule": "aggregate_krum", "to_keep": 0}, F
    ),
    flower_app(
        "bulyan",
        "bulyan:Bulyan",
        {"num_malicious_nodes": "=f"},
        F,
        note="It selects the n - 2 f best by one score of Krum, instead of one after another.",
    ),
    krum("bulyan", "bulyan:Bulyan", {**N_F, "m": 1}, F, note="It selects n - 2 f - 2 updates and then trims f."),
    fedml(
        "bulyan",
        "bulyan_defense:BulyanDefense",
        {"byzantine_client_num": "=f", "client_num_per_round": "=n"},
        F,
        note="Its Krum adds up distances, not squared ones, to n - f others, and it keeps one value less.",
    ),
    playground("bulyan", "BulyanAggregation", {"n_byzantine": "=f"}, F),
    byzfl("mda", "MDA", F, F),
    geometric("mda", "MinimumDiameterAveraging", F, F),
    krum("mda", "brute:Brute", N_F, F),
    byzfl(
        "monna",
        "MoNNA",
        {"f": "=f", "idx": 0},
        F,
        form="reference",
        note="Of equally near updates it takes those that numpy's `argpartition` puts first, and hpcps the first of "
        "them: for n = 6 updates `(1, 0, 0)`, `(0, 1, -1)`, `(0, -1, 1)`, `(1, 1, 1)`, `(1, 1, 1)`, `(1, -1, 1)` and "
        "f = 1, hpcps computes `(0.8, 0.4, 0.4)`, ByzFL `(0.8, 0, 0.8)`.",
    ),
    geometric("monna", "MoNNA", {"f": "=f", "reference_index": 0}, F, form="reference"),
    krum(
        "monna",
        "nearest_neighbor_average:NearestNeighborAverage",
        {"num_closest": "=n-f", "pivot": "first"},
        F,
        form="reference",
    ),
    byzfl(
        "geometric_median",
        "GeometricMedian",
        ours={"smoothing": 0.1, "iterations": 3, "tolerance": 0.0},
        note="It takes 3 steps from zero, which end before the minimum. By default hpcps computes the minimum.",
    ),
    geometric(
        "geometric_median",
        "GeometricMedian",
        ours={**EPSILON, "start": "lower_median", "smoothing": 1e-12, "iterations": 256},
        note="It starts at the median of each coordinate, and does not leave an update that lies there. By default "
        "hpcps computes the minimum from every start.",
    ),
    geometric(
        "geometric_median",
        "GeometricMedian",
        {"init": "mean", "tol": 1e-30, "max_iter": 100},
        {**EPSILON, "start": "mean", "smoothing": 1e-12},
    ),
    krum(
        "geometric_median",
        "geometric_median:GeometricMedian",
        {**N_F, "tol": 0.0},
        {**EPSILON, "start": "mean", "smoothing": 0.1},
    ),
    fedml(
        "geometric_median",
        "geometric_median_defense:GeometricMedianDefense",
        {"byzantine_client_num": "=max(1,f)", "client_num_per_round": "=n", "batch_num": "=n"},
        {**EPSILON, "smoothing": 1e-5},
        note="Its set of weights has one element if all clients have equally many samples, so it returns the update "
        "of the first.",
    ),
    playground("geometric_median", "GeometricMedianAggregation", ours={**EPSILON, "start": "mean", "smoothing": 1e-8}),
    of("geom-median", "geom_median.numpy:")(
        "geometric_median",
        "compute_geometric_median",
        {"eps": 1e-6, "ftol": -1.0},
        {**EPSILON, "start": "mean"},
        note="It takes 100 steps, as ByzPy, krum and fed-playground do; some minima need more. By default hpcps "
        "computes the minimum.",
    ),
    byzfl("centered_clipping", "CenteredClipping", {"L": 1, "tau": 100.0}, {"radius": 100.0}, form="twice"),
    byzfl("centered_clipping", "CenteredClipping", {"L": 3, "tau": 10.0}, {"radius": 10.0, "iterations": 3}),
    norm(
        "centered_clipping",
        "CenteredClipping",
        {"c_tau": 10.0, "M": 3, "init": "zero"},
        {"radius": 10.0, "iterations": 3},
    ),
    norm(
        "centered_clipping",
        "CenteredClipping",
        {"c_tau": 10.0, "M": 3, "init": "zero"},
        {"radius": 10.0, "iterations": 3},
        form="twice",
        note="It keeps nothing from one round to the next.",
    ),
    fedml(
        "centered_clipping",
        "cclip_defense:CClipDefense",
        {"tau": 10, "bucket_size": 1},
        {"radius": 10.0},
        note="It clips around the update of a client that it draws with numpy's global random generator.",
    ),
    playground(
        "centered_clipping",
        "CenteredClippingAggregation",
        {"clip_radius": 10.0, "n_iters": 3},
        {"radius": 10.0, "iterations": 3},
        note="It begins at the median in every round.",
    ),
    norm("cge", "ComparativeGradientElimination", F, F),
    byzfl("caf", "CAF", F, F, note="Its direction is one power step from a random vector."),
    norm("caf", "CAF", F, F, note="Its direction is three power steps from a random vector with a fixed seed."),
    norm(
        "caf",
        "CAF",
        {"f": "=f", "power_iters": 5000},
        {**F, "largest": "all"},
        note='It divides by the largest square of all updates, as the paper and `largest = "all"` of hpcps do; hpcps '
        "by default by that of updates whose weight is not 0.",
    ),
    byzfl("smea", "SMEA", F, F, note="Its direction is one power step from a random vector."),
    geometric("smea", "SMEA", F, F),
    krum("aksel", "aksel:Aksel", F, {"f": "=f", "keep": "n-f"}),
    fedml(
        "norm_clipping", "norm_diff_clipping_defense:NormDiffClippingDefense", {"norm_bound": 50.0}, {"radius": 50.0}
    ),
    fedml("rlr", "robust_learning_rate_defense:RobustLearningRateDefense", {"robust_threshold": 4}, {"threshold": 4}),
]
"""The pairs of rules."""
