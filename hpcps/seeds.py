"""Independent random streams for every role and purpose, derived from the experiment's seed."""

import hashlib

import numpy as np


def generator(seed: int, role: str, index: int, purpose: str) -> np.random.Generator:
    """Return the random generator of one role for one purpose.

    The stream does not depend on the run id, the transport or the number of roles. So rules and transports are compared
    on the same data and noise, and adding a worker does not change the streams of others.

    Args:
        seed: the run's seed.
        role: `"worker"`, `"validator"`, … or `"experiment"` for values that all roles must draw equally.
        index: the role's index.
        purpose: the purpose of the values, such as `"batches"` or `"participation"`.
    """
    digest = hashlib.sha256(f"{role}/{index}/{purpose}".encode()).digest()
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, int.from_bytes(digest[:16], "little")])))
