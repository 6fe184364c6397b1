"""Memory allocation of a process that transfers large messages."""

from __future__ import annotations

import ctypes
import sys

_ARENA_MAX, _MMAP_MAX, _TRIM_THRESHOLD, _TOP_PAD = -8, -4, -1, -2


def keep_freed_memory() -> None:
    """Make the C library keep the memory of freed messages for later ones; call this before any thread starts.

    ZeroMQ allocates memory for each received frame. By default, the C library gets the memory of a large frame from the
    kernel and returns it, page by page. This costs as much as sending the frame (measured: 244,000 page faults and 0.5
    CPU seconds per GB).
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return
    # One arena, because the arenas of threads are too small for large frames; keep any amount (the largest int).
    for option, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 24)):
        library.mallopt(option, value)
