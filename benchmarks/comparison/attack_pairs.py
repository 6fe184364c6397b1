"""What the libraries offer for each attack."""

from __future__ import annotations

from comparison.pair import Pair, of

byzfl = of("byzfl", "byzfl.attacks.attacks:")
byzpy = of("byzpy", "byzpy.attacks:")
krum = of("krum", "krum.primitives.attacks.")
playground = of("fed-playground", "fed_playground.src.attacks:")
flwr_attacks = of("flwr-attacks", "flwr_attacks.algorithms:")

POPULATION = "Its standard deviation is that of a population, divided by h."
ALL = "Its z is the quantile of (n - s) / n instead of (n - f - s) / (n - f)."
QUANTILE = "=quantile((h+b-((h+b)//2+1-b))/(h+b))*((h-1)/h)**0.5"
"""This z, and the factor from a sample's standard deviation to a population's."""
SUMS = "The sums of the honest updates, of which the largest is the bound, include the distance to the crafted one."
FORWARD = "After its first step that is not better it only tries larger factors, and hpcps also smaller ones."
SEARCH = {"gamma_init": 1000.0, "step": 1000.0, "tau": 1e-9}
"""Halving steps of gamma up to 2,000."""

ATTACK_PAIRS: list[Pair] = [
    byzpy("negative", "SignFlipAttack", {"scale": -6.0}, {"scale": 6.0}, form="honest"),
    playground("negative", "SignFlipAttack", {"scale": 6.0}, {"scale": 6.0}, form="honest"),
    byzfl("random", "Gaussian", {"mu": 0.0, "sigma": 2.0}, {"scale": 2.0}, form="moments"),
    byzpy("random", "GaussianAttack", {"mu": 0.0, "sigma": 2.0}, {"scale": 2.0}, form="moments"),
    krum("random", "gaussian:GaussianAttack", {"f": 1, "mu": 0.0, "std": 2.0}, {"scale": 2.0}, form="moments"),
    playground("random", "GaussianAttack", {"sigma": 2.0}, {"scale": 2.0}, form="moments"),
    byzfl("ipm", "InnerProductManipulation", {"tau": 2.0}, {"epsilon": 2.0}, form="honest"),
    byzfl("ipm", "SignFlipping", {}, {"epsilon": 1.0}, form="honest", note="Its sign flip negates the honest mean."),
    byzpy("ipm", "EmpireAttack", {"scale": -0.5}, {"epsilon": 0.5}, form="honest"),
    krum(
        "ipm",
        "sign_flip:SignFlipAttack",
        {"f": "=b", "scale": 2.0},
        {"epsilon": 2.0},
        form="honest",
        note="Its sign flip negates the honest mean.",
    ),
    krum(
        "ipm",
        "full_gradient_negation:FullGradientNegationAttack",
        {"f": "=b", "full_gradient": "mean", "kappa": 100.0},
        {"epsilon": 100.0},
        form="honest",
        note="With the mean of the honest updates as the full gradient.",
    ),
    playground("ipm", "IPMAttack", {"epsilon": 0.5}, {"epsilon": 0.5}, form="honest"),
    byzfl("alie", "ALittleIsEnough", {"tau": 1.5}, {"z": 1.5, "sign": "+"}, form="honest"),
    krum(
        "alie",
        "alie:ALIEAttack",
        {"f": "=b", "z": 1.5},
        {"z": "=1.5*((h-1)/h)**0.5"},
        form="honest",
        note=POPULATION,
    ),
    krum(
        "alie",
        "alie:ALIEAttack",
        {"f": "=b", "z": "max"},
        {"z": "auto"},
        form="honest",
        note=f"{POPULATION} {ALL}",
    ),
    krum("alie", "alie:ALIEAttack", {"f": "=b", "z": "max"}, {"z": QUANTILE}, form="honest"),
    byzpy("alie", "LittleAttack", {"f": "=b"}, {"z": "auto", "sign": "+"}, form="honest", note=f"{POPULATION} {ALL}"),
    byzpy("alie", "LittleAttack", {"f": "=b"}, {"z": QUANTILE, "sign": "+"}, form="honest"),
    playground(
        "alie",
        "ALittleIsEnoughAttack",
        {"z": 1.0},
        {"z": "=1.0*((h-1)/h)**0.5"},
        form="honest",
        note=POPULATION,
    ),
    flwr_attacks(
        "alie",
        "lie_attack",
        {"total_clients": "=h+b", "total_malicious": "=b"},
        {"z": "auto", "sign": "+"},
        form="honest",
        note=f"{POPULATION} {ALL} It takes z from a grid of 1,000 values.",
    ),
    byzfl(
        "searched_ipm",
        "Optimal_InnerProductManipulation",
        {"agg": "TrMean", "pre_agg_list": [], "f": "=b"},
        form="searched",
        note=FORWARD,
    ),
    byzfl(
        "searched_alie",
        "Optimal_ALittleIsEnough",
        {"agg": "TrMean", "pre_agg_list": [], "f": "=b"},
        {"sign": "+"},
        form="searched",
        note=FORWARD,
    ),
    byzfl("mimic", "Mimic", {"epsilon": 0}, {"worker": 0}, form="honest"),
    byzpy("mimic", "MimicAttack", {"epsilon": 0}, {"worker": 0}, form="honest"),
    flwr_attacks("min_max", "minmax_attack", {"perturbation": "pstd", **SEARCH}, {"direction": "std"}, form="honest"),
    flwr_attacks("min_max", "minmax_attack", {"perturbation": "puv", **SEARCH}, {"direction": "unit"}, form="honest"),
    flwr_attacks(
        "min_max",
        "minmax_attack",
        {"perturbation": "psgn", **SEARCH},
        {"direction": "sign"},
        form="honest",
        note="Its direction is minus the mean, not minus the sign of the mean.",
    ),
    flwr_attacks(
        "min_sum", "minsum_attack", {"perturbation": "pstd", **SEARCH}, {"direction": "std"}, form="honest", note=SUMS
    ),
    flwr_attacks(
        "min_sum", "minsum_attack", {"perturbation": "puv", **SEARCH}, {"direction": "unit"}, form="honest", note=SUMS
    ),
]
"""The pairs of attacks."""
