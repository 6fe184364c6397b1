"""Compiling the kernels takes minutes on a loaded machine, and says how far it is."""

import io
import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("numba")

import numba
from numba.core import event

from hpcps.numerics.kernels.compiled import kernels
from hpcps.numerics.kernels.loading import CompilationProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def compile_some(stream, **options):
    """Compile two functions that stand for two kernels, one of them twice, and one function that is none."""
    progress = CompilationProgress(stream, **options)

    def twice(x):
        return x * 2

    def thrice(x):
        return x * 3

    both = [numba.njit(twice), numba.njit(thrice)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hpcps.numerics.kernels.loading.kernels", both)
        with event.install_listener("numba:compile", progress):
            both[0](1), both[0](1.0), numba.njit(lambda x: x)(1), both[1](1)
        progress.end()
    return stream.getvalue()


def test_a_terminal_shows_which_kernel_of_how_many():
    shown = compile_some(Terminal())
    lines = shown.split("\r\x1b[K")
    assert lines[0] == "hpcps: compiling the 2 kernels of the rules, once ...\n"
    assert [line.partition(" (")[0] for line in lines[1:4]] == [
        *("hpcps: kernel 1 of 2, twice", "hpcps: kernel 1 of 2, twice", "hpcps: kernel 2 of 2, thrice")
    ]
    assert lines[4].startswith("hpcps: compiled in ")
    assert len(lines) == 5


def test_a_log_has_a_line_every_five_seconds():
    clock = itertools.count(step=3).__next__
    first, *between, last = compile_some(io.StringIO(), clock=clock).splitlines()
    assert first.startswith("hpcps: compiling the 2 kernels")
    assert between == ["hpcps: kernel 1 of 2, twice (6 s so far)"]
    assert last.startswith("hpcps: compiled in 12.0 s, ")


def test_a_log_of_a_fast_compilation_has_the_first_and_the_last_line():
    first, last = compile_some(io.StringIO()).splitlines()
    assert first.startswith("hpcps: compiling the 2 kernels")
    assert last.startswith("hpcps: compiled in ")


def test_kernels_from_the_cache_print_nothing():
    stream = Terminal()
    progress = CompilationProgress(stream)
    progress.on_start(SimpleNamespace(data={"dispatcher": numba.njit(lambda x: x)}))
    progress.end()
    assert stream.getvalue() == ""
    assert len(kernels) > 10
