"""Independent random streams for every role and purpose, derived from the experiment's seed."""

import hashlib

import numpy as np


def generator(seed: int, role: str, index: int, purpose: str) -> np.random.Generator:
    """Return the random generator of one role for one purpose.

    Streams depend on nothing else: neither on the run id nor on the transport or the number of roles, so rules and
    transports are compared on the same data and noise, and adding a worker changes no other's stream.

    Args:
        seed: the run's seed.
        role: `"worker"`, `"validator"`, … or `"experiment"` for what all roles must draw alike.
        index: the role's index.
        purpose: what is drawn, such as `"batches"` or `"participation"`.
    """
    digest = hashlib.sha256(f"{role}/{index}/{purpose}".encode()).digest()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, int.from_bytes(digest[:16], "little")])))
