"""Compiled kernels of the rules, which read the updates in place and equal the numpy definitions bit for bit.

They need numba, which is optional. Without numba, and for small updates, rules use the numpy definitions.

- `engine`: the operations of `numerics/operations.py` with kernels
- `pointers`: the addresses of updates, and their division among threads
- `compiled`: compiles kernels and caches their machine code
- `loading`: loads all kernels from the cache, or compiles them once
- `__main__`: compiles the kernels before a run
- `memory`: access to memory at an address
- `registers`: inner loops that keep values of several rows in registers
- `means`: means and votes on signs, added to the model in the same pass
- `ordered`: means of ranks, for rules that sort the values of each coordinate
- `pairs`: inner products of all pairs of updates, and weighted sums
- `scores`: products of updates with a vector, for screening and for scaling
- `mixing`: several weighted sums of the same updates
- `coding`: the loops of `numerics/coding/`
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib.util import find_spec

SMALLEST = 1 << 19
"""The minimum number of elements of all updates for which kernels are used: loading them takes half a second."""

LOADED_DIVISOR = 32
"""Once the kernels are loaded, the minimum is `SMALLEST` divided by this; partitions of a large model are small."""


@lru_cache(maxsize=1)
def installed() -> bool:
    """Return whether numba, the compiler of the kernels, is installed."""
    return find_spec("numba") is not None


@lru_cache(maxsize=1)
def ready() -> bool:
    """Load all kernels at the first call; return whether they can be used."""
    if not installed():
        return False
    try:
        from hpcps.numerics.kernels import loading
    except ImportError as error:  # for example, numba does not support this version of numpy
        warnings.warn(f"rules run without compiled kernels: {error}", RuntimeWarning, stacklevel=2)
        return False
    loading.load()
    return True


def prepare(elements: int) -> None:
    """Load the kernels before the first round if the number of elements of a round makes that worthwhile."""
    if elements >= SMALLEST:
        ready()


def enough(elements: int) -> bool:
    """Return whether kernels are to compute with so many elements."""
    smallest = SMALLEST // LOADED_DIVISOR if ready.cache_info().currsize else SMALLEST
    return elements >= smallest and ready()


_looped = 0
"""The elements of all loops of this process that were executed without kernels."""


def enough_looped(elements: int) -> bool:
    """Return whether kernels are to execute a loop over so many elements, whose definition is a loop of Python.

    Such a loop is a hundred times slower than an operation on arrays, so all loops of the process count together: when
    they have taken about as long as loading the kernels takes, the kernels are loaded.
    """
    global _looped
    if not ready.cache_info().currsize:
        _looped += elements
        if _looped < SMALLEST:
            return False
    return ready()
