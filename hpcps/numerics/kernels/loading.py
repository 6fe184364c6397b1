"""Loads all kernels from the cache of machine code, or compiles them once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

import numpy as np
from numba.core import event
from numba.core.dispatcher import Dispatcher

from hpcps.numerics.kernels import coding, engine, mixing
from hpcps.numerics.kernels.compiled import CACHE, compiled, kernels
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Destination, Updates


def load() -> int:
    """Call every kernel once, and report the progress if kernels are compiled; return the number compiled."""
    progress = CompilationProgress(sys.stderr)
    with event.install_listener("numba:compile", progress):
        _call_all()
    progress.end()
    return compiled()


class CompilationProgress(event.Listener):  # type: ignore[misc]  # numba has no types
    """Prints which kernel of how many is compiled: on a terminal on a line that it rewrites, in a log every 5 s."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._terminal, self._clock = stream, stream.isatty(), clock
        self._began = self._printed = clock()
        self._begun: list[str] = []

    def on_start(self, event: event.Event) -> None:
        """Note that the compilation of a function starts. A function may be compiled several times."""
        dispatcher: Dispatcher = event.data["dispatcher"]
        if not any(dispatcher is kernel for kernel in kernels):
            return  # a function of numba itself
        if not self._begun:
            self._say(f"hpcps: compiling the {len(kernels)} kernels of the rules, once ...\n")
        name = dispatcher.py_func.__name__
        self._begun += [] if name in self._begun else [name]
        now = self._clock()
        line = f"hpcps: kernel {len(self._begun)} of {len(kernels)}, {name} ({now - self._began:.0f} s so far)"
        if self._terminal:
            self._say(f"\r\x1b[K{line}")
        elif now - self._printed >= 5:
            self._printed = now
            self._say(f"{line}\n")

    def on_end(self, event: event.Event) -> None:
        """Do nothing: the next start shows the progress."""

    def end(self) -> None:
        """Print the duration and the cache folder, if kernels were compiled."""
        if self._begun:
            where = f"kept in {CACHE}" if CACHE else "and cannot be kept: no cache folder is writable"
            clear = "\r\x1b[K" if self._terminal else ""
            self._say(f"{clear}hpcps: compiled in {self._clock() - self._began:.1f} s, {where}\n")

    def _say(self, text: str) -> None:
        print(text, end="", file=self._stream, flush=True)


def _call_all() -> None:
    vector = np.zeros(1, np.float32)
    updates = Updates.of(np.zeros((3, 1), np.float32), Layout.of([("", (1,))])).onto(Destination(vector))
    engine.screen(updates)
    engine.average(updates)
    engine.mean_of_ranks(updates, 1, 2)
    engine.mean_by_agreement(updates, 1.0)
    engine.products(updates, vector)
    engine.gram(updates)
    engine.weighted_sum(updates, np.ones((3, 1)))
    mixing.mix(updates, np.ones((1, 1, 3)), slice(0, 1), vector[None, :])
    mixing.mix(updates, np.eye(3)[None, :1], slice(0, 1), vector[None, :])
    indices = np.zeros(1, np.uint32)
    coding.round_to_upper(indices, indices.astype(np.uint16))
    coding.lengthen(indices.astype(np.uint16), indices.copy())
    coding.largest_magnitude(indices)
    coding.round_products(vector, np.float32(1), np.zeros(1, np.int8))
    coding.pack_signs(vector, indices.copy())
    coding.sum_magnitudes(vector)
    coding.sum_squares(vector, np.zeros(1))
    coding.quantize(vector, vector, 1, 2, np.random.SFC64(0), np.zeros(1, np.uint8))
    matrix = np.ones((200, 1), np.float32)
    coding.product(matrix.T.copy(), matrix)
    coding.transposed_product(matrix, matrix)
    coding.multiply_out(matrix, matrix, np.zeros(40_000, np.float32))
    coding.narrow(vector, vector.astype(np.float16))
    coding.widen(vector.astype(np.float16), vector.copy())
    coding.select_by_heap(vector, indices, vector.copy())
    coding.select_largest(indices, np.zeros((1, 2), np.uint32))
    coding.draw_indices(np.ones(2, np.uint64), 1, indices)
    coding.dither(vector, np.ones(2, np.uint64), 1, 1.0, indices.copy(), False)
    coding.undither(indices, 0, 1, np.float32(1), vector.copy())
    engine.scale(Updates.of(vector[None, :], updates.layout), np.ones(1))
