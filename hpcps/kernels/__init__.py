"""Rules at the speed of memory: compiled, on the updates where they lie; bit for bit what the definitions give.

numba makes them and is optional: without it, and for small updates, rules are what numpy makes of their definitions.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from importlib.util import find_spec

from hpcps.updates import Updates

SMALLEST = 1 << 19
"""Elements, over all updates, from which on kernels are used: to load them costs a process half a second, once."""


LOADED = 32
"""A share of that is enough once they are loaded anyway, as for the partitions of a large model."""


@lru_cache(maxsize=1)
def installed() -> bool:
    """Tell whether there is a compiler for kernels."""
    return find_spec("numba") is not None


@lru_cache(maxsize=1)
def ready() -> bool:
    """Load all kernels when they are first wanted; tell whether they can be used."""
    if not installed():
        return False
    try:
        from hpcps.kernels import loading
    except ImportError as error:  # of a numpy that this numba does not know, say
        warnings.warn(f"rules do without their kernels: {error}", RuntimeWarning, stacklevel=2)
        return False
    loading.load()
    return True


def prepare(elements: int) -> None:
    """Load the kernels now, before the first round, if so many elements a round make it worthwhile."""
    if elements >= SMALLEST:
        ready()


def worthwhile(updates: Updates) -> bool:
    """Tell whether kernels shall combine these updates: a partition of many, perhaps."""
    smallest = SMALLEST // LOADED if ready.cache_info().currsize else SMALLEST
    return len(updates) > 0 and len(updates) * updates.layout.size >= smallest and ready()
