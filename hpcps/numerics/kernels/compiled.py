"""Compiles kernels and caches their machine code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.dispatcher import Dispatcher

Function = TypeVar("Function", bound=Callable[..., Any])

_HERE = Path(__file__).parent


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _cache() -> Path | None:
    """Return the cache folder of the machine code of this version of the kernels; None if no folder is writable.

    numba checks only a function's own file for changes, so the folder's name is a hash of all files.
    """
    sources = b"".join(path.read_bytes() for path in sorted(_HERE.glob("*.py")))
    name = "kernels-" + hashlib.sha256(sources).hexdigest()[:12]
    return next((base / name for base in _bases() if _writable(base / name)), None)


def _bases() -> Iterator[Path]:
    yield _HERE / "__pycache__"
    # In a container a user may have neither a HOME nor an entry in the user database.
    with suppress(RuntimeError):
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcps"


CACHE = _cache()
"""The cache folder, with one set of machine code per processor model; None: every process compiles its own."""

kernels: list[Dispatcher] = []
"""All functions that `kernel` has returned."""


def kernel(function: Function) -> Function:
    """Compile a function at its first call, or load it from the cache; it releases the GIL.

    Floating-point operations follow IEEE 754 strictly: reordering would change the results.
    """
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(CACHE or "")
    try:
        made = numba.njit(nogil=True, cache=CACHE is not None, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before
    kernels.append(made)
    return made  # type: ignore[no-any-return]


def compiled() -> int:
    """Return the number of kernels that this process has compiled so far."""
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)
