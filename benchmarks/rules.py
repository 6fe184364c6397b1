"""Measure the rules on updates of 1.6 GB, and compare them with one read pass over the same memory and with ByzFL.

    .venv/bin/python benchmarks/rules.py [--quick] [--peers none] [--output benchmarks/results]

All are measured in turn, several times, so that other load on the machine affects all of them. hpcps and ByzFL are
compared by medians of as many runs, after runs that are not counted; both may use all cores, and ByzFL gets numpy
arrays or torch tensors, whichever is faster. Every result is checked on a slice: a kernel's result must equal the numpy
definition bit for bit, and ByzFL's up to float32 rounding. ByzFL has a separate environment, `.venv-byzfl`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import robust
from bars import write
from byzfl_peer import THREADS, Beside, ByzFL, environment
from machine import Others
from processes import MeasurementError, NotHereError, clean_up_on_sigterm
from rules_report import BLOCKS, BYZFL, SERIES, Times, draw, report

from hpcps.numerics import kernels
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Destination, Updates
from hpcps.rules import Average, Median, Phocas, TrimmedMean, Zeno, ZenoPlusPlus
from hpcps.rules.context import AsyncContext, Context

SAMPLE = 1 << 20
"""The number of elements of ByzFL's results that are compared."""
RULES = {
    "average": Average(),
    "trimmed_mean": TrimmedMean(),
    "median": Median(),
    "phocas": Phocas(),
    "zeno": Zeno(),
}


class Data:
    """The updates in shared memory, one after another; it is divided among the updates again for each n."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.fd, self.result_fd = (os.memfd_create(name) for name in ("updates", "result"))
        os.ftruncate(self.fd, 4 * elements)
        os.ftruncate(self.result_fd, 4 * elements // 4)
        self.values = np.frombuffer(mmap.mmap(self.fd, 0), np.float32)
        self.result = np.frombuffer(mmap.mmap(self.result_fd, 0), np.float32)
        rng = np.random.default_rng(1)
        for part in np.array_split(self.values, 64):
            rng.standard_normal(out=part, dtype=np.float32)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.result_fd)

    def updates(self, n: int) -> Updates:
        size = self.elements // n
        edges = np.linspace(0, size, BLOCKS + 1).astype(int) // 7 * 7
        edges[-1] = size
        layout = Layout.of([(f"block {b}", (int(length),)) for b, length in enumerate(np.diff(edges))])
        return Updates.of(self.values[: n * size].reshape(n, size), layout)


@contextmanager
def numpy_alone() -> Iterator[None]:
    """Make rules use the numpy definitions instead of kernels."""
    with patch.object(kernels, "SMALLEST", 1 << 62):
        yield


def read_pass(data: Data, threads: int) -> Callable[[], Any]:
    """Read all updates once; each thread reads its part from start to end."""
    from hpcps.numerics.kernels.memory import largest
    from hpcps.numerics.kernels.pointers import PointerTable

    count = data.elements
    pieces = np.array([(0, a, a + 65536) for a in range(0, count - 65536, 65536)], np.int64)
    places = PointerTable(np.empty(0, np.int64), np.array([0, count]), pieces)
    return lambda: places.run(lambda table, a, b: largest(data.values[65536 * a : 65536 * b]), threads)


def calls(updates: Updates, threads: int) -> dict[str, Callable[[], Any]]:
    """Return the measurements for these updates."""
    d = updates.layout.size
    out, base = np.zeros(d, np.float32), np.zeros(d, np.float32)
    close = np.mean([p[:d] for p in updates.payloads[:2]], axis=0, dtype=np.float32)
    like = close * np.float32(2.0 * len(updates) ** 0.5)  # its norm is at least that of the updates: all are accepted
    some = np.zeros(d, np.float32)  # every other update is similar to this one, the others are opposed to it
    for number, payload in enumerate(updates.payloads):
        (np.subtract if number % 2 else np.add)(some, payload[:d], out=some)

    def combine(rule: Any, v: Any = like, base: Any = None) -> Callable[[], Any]:
        placed = updates.onto(Destination(base, out, threads))
        return lambda: rule.combine(placed, Context(v))

    found = {name: combine(rule) for name, rule in RULES.items()}
    found["average, added to the model"] = combine(RULES["average"], base=base)
    found["zeno"] = combine(Zeno(rho=-1.0, epsilon=10.0))
    found["zeno, half refused"] = combine(Zeno(rho=0.0, epsilon=10.0))
    found["zeno, half turned"] = combine(Zeno(rho=0.0, epsilon=10.0), some)
    return {name: found[name] for name in SERIES}


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def check(updates: Updates) -> None:
    """Check that kernels equal the numpy definition bit for bit on the first part of the updates."""
    size = min(updates.layout.size, 1 << 17)
    part = Updates.of(np.stack([p[:size] for p in updates.payloads]), updates.layout.restrict(0, size))
    for name, work in calls(part, 2).items():
        with patch.object(kernels, "SMALLEST", 0):
            got = work()
            ours = got.update.copy()
        with numpy_alone():
            want = work()
        assert ours.tobytes() == want.update.tobytes(), f"{name} of {len(updates)}"
        assert np.array_equal(got.accepted, want.accepted), f"{name} of {len(updates)}"


def measure(
    args: argparse.Namespace, data: Data, times: Times, beside: dict[tuple[str, int], Beside]
) -> tuple[robust.Times, str, bool]:
    """Measure all rules in turn; add to `times`, and to `beside` those that ByzFL has.

    Returns:
        The times of all rules on 16 updates; the reason why ByzFL was not measured completely, empty if it was; and
        whether ByzFL was installed and failed.
    """
    problem, failed, byzfl = "it was not asked for", False, None
    if args.peers != ["none"]:
        try:
            byzfl, problem = ByzFL(environment(), data.fd, data.result_fd), ""
        except MeasurementError as error:
            problem, failed = str(error), not isinstance(error, NotHereError)
    for n in args.updates:
        updates = data.updates(n)
        check(updates)
        asked = {threads: {"read": read_pass(data, threads), **calls(updates, threads)} for threads in (1, 2)}
        for repeat in range(args.repeats + 1):  # the first repeat allocates the pages, and is not counted
            for threads in (1, 2):
                for name, work in asked[threads].items():
                    seconds = timed(work)
                    if repeat:
                        times.setdefault((name, n, f"{threads}"), []).append(seconds)
        for name in BYZFL if byzfl else ():
            work = calls(updates, THREADS)[name]
            try:
                beside[name, n] = byzfl.beside(name, updates, lambda work=work: timed(work), args.repeats)
            except MeasurementError as error:
                problem, failed, byzfl = f"{error}, at {name} of {n}", True, None
                break
            ours = work().update[:SAMPLE]
            same = np.allclose(data.result[: ours.size], ours, rtol=1e-5, atol=1e-6)
            assert same, f"ByzFL's {name} of {n}"
        if n == 16:
            del asked[1]["read"]
            with numpy_alone():
                for name, work in asked[1].items():
                    times[name, n, "numpy"] = [timed(work)]
        print(f"n = {n} done", flush=True)
    judge(args, data, times)
    updates = data.updates(robust.N)
    found, wrong = robust.measure(data.values, updates, read_pass(data, THREADS), args.repeats, byzfl, data.result)
    if byzfl:
        byzfl.close()
    return found, problem or wrong, failed or bool(wrong)


def judge(args: argparse.Namespace, data: Data, times: Times) -> None:
    """Measure zeno++ on one update, which it changes in place; it reads this and the validator's own update."""
    d = data.elements // 4
    u, v = data.values[:d].copy(), data.values[d : 2 * d]
    layout = data.updates(4).layout
    sent = np.ones(len(layout.blocks), np.bool_)
    pair = Updates.of(data.values[: 2 * d].reshape(2, d), layout)
    from hpcps.numerics.kernels import engine

    for repeat in range(args.repeats + 1):
        for name, work in (
            ("read for zeno++", lambda: engine.screen(pair)),
            ("zeno++", lambda: ZenoPlusPlus().decide(u, AsyncContext(layout=layout, sent=sent, reference=v))),
        ):
            seconds = timed(work)
            if repeat:
                times.setdefault((name, 1, "1"), []).append(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, two repeats")
    parser.add_argument("--peers", nargs="*", default=["byzfl"], choices=["byzfl", "none"])
    parser.add_argument("--updates", nargs="+", type=int, default=[4, 8, 16, 32, 64])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--output", type=Path, help="folder for the report; without it, it is printed only")
    args = parser.parse_args()
    clean_up_on_sigterm()
    args.repeats = args.repeats or (2 if args.quick else 5)
    if not kernels.ready():
        print("numba is not installed, so there are no kernels: pip install 'hpcps[kernels]'", file=sys.stderr)
        return 1
    others = Others()
    times: Times = {}
    beside: dict[tuple[str, int], Beside] = {}
    with closing(Data(40_000_000 if args.quick else 400_000_000)) as data:
        of_all, problem, failed = measure(args, data, times, beside)
    text, bars = report(args, times, beside, others.cores(), problem, 4e-9 * data.elements)
    text += "\n".join([*robust.lines(of_all), ""])
    bars += robust.bars(of_all)
    print(text)
    for bar in bars:
        print("holds " if bar.holds else "MISSED", bar.what, bar.measured, bar.wanted)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        text += "\n![Time over that of a read pass](rules.png)\n"
        (args.output / "rules.md").write_text(text, encoding="utf-8")
        draw(args, times, args.output / "rules.png")
        write(args.output, "rules", bars)
    if failed:
        print(f"failed: {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
