"""How kernels are compiled, and where what was compiled is kept."""

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
    """Return the folder of these very kernels' machine code, if there is one that can be written to.

    numba looks at a function's own file only to see whether it has changed; so the folder is named after all of them.
    """
    sources = b"".join(path.read_bytes() for path in sorted(_HERE.glob("*.py")))
    name = "kernels-" + hashlib.sha256(sources).hexdigest()[:12]
    return next((base / name for base in _bases() if _writable(base / name)), None)


def _bases() -> Iterator[Path]:
    yield _HERE / "__pycache__"
    # In a container a user may have neither a HOME nor an entry among the users.
    with suppress(RuntimeError):
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcps"


CACHE = _cache()
"""Where machine code is kept, one set for each kind of processor; None: every process compiles its own."""

kernels: list[Dispatcher] = []
"""All that `kernel` made."""


def kernel(function: Function) -> Function:
    """Compile a function when it is first called, or load it if that was done before; threads run it side by side.

    Floats obey IEEE 754 to the letter: nothing is reordered, or the results would not be those of the definition.
    """
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(CACHE or "")
    try:
        made = numba.njit(nogil=True, cache=CACHE is not None, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before
    kernels.append(made)
    return made  # type: ignore[no-any-return]


def compiled() -> int:
    """Return how many kernels this process had to compile so far."""
    return sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels)
