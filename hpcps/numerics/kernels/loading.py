"""Loads all kernels from the cache of machine code, or compiles them once."""

from __future__ import annotations

import sys
import time

import numpy as np

from hpcps.numerics.kernels import engine, filtering
from hpcps.numerics.kernels.compiled import CACHE, compiled
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates


def load() -> int:
    """Call every kernel once, and report it if kernels are compiled; return the number of kernels compiled."""
    began = time.monotonic()
    updates = Updates.of(np.zeros((3, 1), np.float32), Layout.of([("", (1,))]))
    vector = np.zeros(1, np.float32)
    engine.screen(updates, 1)
    if compiled():
        print("hpcps: compiling the kernels of the rules (some seconds, once) ...", file=sys.stderr, flush=True)
    engine.average(updates, vector, None, 1)
    engine.ordered(updates, 1, 2, vector, None, 1)
    filtering.products(updates, vector, 1)
    engine.scale(Updates.of(vector[None, :], updates.layout), np.ones(1), vector)
    if compiled():
        where = f"kept in {CACHE}" if CACHE else "and cannot be kept: no cache folder is writable"
        print(f"hpcps: compiled in {time.monotonic() - began:.1f} s, {where}", file=sys.stderr, flush=True)
    return compiled()
