"""Independent random streams for every role and purpose, derived from the experiment's seed."""

import hashlib
from collections.abc import Callable

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


def numbered(seed: int, role: str, index: int, purpose: str) -> Callable[[int], int]:
    """Return a function from a number, such as that of a step, to a seed from 0 to 2^63 - 1.

    The arguments are those of `generator`. A value that is drawn with such a seed needs no place in a checkpoint.
    """
    start = generator(seed, role, index, purpose).bytes(16)

    def seed_of(number: int) -> int:
        digest = hashlib.sha256(start + number.to_bytes(8, "little")).digest()
        return int.from_bytes(digest[:8], "little") >> 1

    return seed_of
