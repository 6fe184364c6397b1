"""What the libraries offer for the attacks that need nothing of other workers."""

from __future__ import annotations

from comparison.pair import Pair, of

byzfl = of("byzfl", "byzfl.attacks.attacks:")
byzpy = of("byzpy", "byzpy.attacks:")
krum = of("krum", "krum.primitives.attacks.")
playground = of("fed-playground", "fed_playground.src.attacks:")

OWN_ATTACK_PAIRS: list[Pair] = [
    byzpy("sign_flip", "SignFlipAttack", form="honest"),
    playground("sign_flip", "SignFlipAttack", form="honest"),
    byzfl(
        "sign_flip",
        "SignFlipping",
        form="honest",
        note="It negates the mean of the honest updates, as hpcps does with `ipm` and epsilon = 1.",
    ),
    krum(
        "sign_flip",
        "sign_flip:SignFlipAttack",
        {"f": "=b"},
        form="honest",
        note="It negates the mean of the honest updates, as hpcps does with `ipm` and epsilon = 1.",
    ),
    byzfl("gaussian", "Gaussian", {"mu": 0.0, "sigma": 2.0}, {"scale": 2.0}, form="moments"),
    byzpy("gaussian", "GaussianAttack", {"mu": 0.0, "sigma": 2.0}, {"scale": 2.0}, form="moments"),
    krum("gaussian", "gaussian:GaussianAttack", {"f": 1, "mu": 0.0, "std": 2.0}, {"scale": 2.0}, form="moments"),
    playground("gaussian", "GaussianAttack", {"sigma": 2.0}, {"scale": 2.0}, form="moments"),
    byzfl("infinite", "Inf", form="honest"),
    byzpy("infinite", "InfAttack", form="honest"),
]
"""The pairs of these attacks."""
