"""Measures the rules on a GPU, in shares of the bandwidth of a copy in the same run; for gpu.py."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import bars
import torch

from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Destination, Updates
from hpcps.rules import Average, Context, Median, Phocas, TrimmedMean, Zeno

ELEMENTS = 1 << 30
"""Elements of all updates of a measurement: 4 GiB, more than any cache holds, and so many that the device is still at
work on one call when the host asks for the next: a call is a dozen launches."""
NUMBERS = (4, 8, 16, 32, 64)
"""The numbers of updates."""
SORTING = ("trimmed_mean", "median", "phocas")
LEFT_OUT = "rules on the device: left out, because torch sees no GPU here"


@dataclass(frozen=True)
class Rate:
    """The bandwidth of a rule.

    Attributes:
        rule: the kind of the rule, and what is special about the updates.
        n: the number of updates.
        bandwidth: bytes per second: the updates, the result and the reference, if any, each counted once.
        share: the bandwidth divided by that of a copy, which reads and writes.
    """

    rule: str
    n: int
    bandwidth: float
    share: float


def seconds(call, repetitions) -> float:
    """Return the median time of a call on the GPU, after two calls that are not measured."""
    for _ in range(2):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repetitions)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events) / 1e3


def measure(*, quick: bool, keep: Callable[[list[Rate]], None] = lambda found: None) -> list[Rate]:
    """Measure all rules; only n = 4 and fewer repetitions if `quick`. Empty if there is no GPU.

    Args:
        quick: see above.
        keep: called with all results so far, after each.
    """
    if not torch.cuda.is_available():
        return []
    repetitions, found = 5 if quick else 20, []
    for n in NUMBERS[:1] if quick else NUMBERS:
        rows = torch.randn(n, ELEMENTS // n, device="cuda")
        size = rows.shape[1]
        layout = Layout.of([(str(i), (size // 64,)) for i in range(64)])
        half = rows.numel() // 2
        flat = rows.reshape(-1)
        copy = 8 * half / seconds(lambda half=half, flat=flat: flat[:half].copy_(flat[half:]), repetitions)
        rows.normal_()
        rows += 3 * rows[0]  # so all are similar to the first
        updates = Updates.of(rows, layout).onto(Destination(out=torch.empty(size, device="cuda")))
        reference = rows[0].clone()
        cases = [(rule.kind, rule) for rule in (Average(), TrimmedMean(), Median(), Phocas(), Zeno(epsilon=10.0))]
        for name, rule in [*cases, ("zeno, a quarter rejected", Zeno(rho=0.0, epsilon=10.0))]:
            if "rejected" in name:
                rows[: n // 4] *= -1
            context = Context(reference)
            took = seconds(lambda rule=rule, each=updates, given=context: rule.combine(each, given), repetitions)
            bandwidth = 4 * size * (n + 1 + bool(rule.needs)) / took
            found.append(Rate(name, n, bandwidth, bandwidth / copy))
            keep(found)
        del rows, flat, updates
    return found


def report(rates: list[Rate]) -> list[str]:
    """Return the lines of gpu.md on the rules."""
    if not rates:
        return ["", LEFT_OUT, ""]
    return [
        "",
        f"Rules on the device: {4 * ELEMENTS >> 20} MiB of updates in 64 blocks; shares of the bandwidth of a copy.",
        "",
        "| rule | updates | GB/s | share |",
        "|---|---:|---:|---:|",
        *(f"| {rate.rule} | {rate.n} | {rate.bandwidth / 1e9:.0f} | {rate.share:.0%} |" for rate in rates),
        "",
    ]


def bars_of(rates: list[Rate]) -> list[bars.Bar]:
    """Return the bars: the smallest share of average and zeno, and of the sorting rules by their number of updates."""
    groups = [
        ("average and zeno on the device", 0.7, [rate for rate in rates if rate.rule not in SORTING]),
        *(
            (f"sorting rules on the device, {low} to {high} updates", limit, within(rates, low, high))
            for low, high, limit in ((4, 16, 0.7), (17, 32, 0.5), (33, 64, 0.3))
        ),
    ]
    return [
        bars.Bar.at_least(f"{what}, share of the copy bandwidth", min(rate.share for rate in group), limit)
        for what, limit, group in groups
        if group
    ]


def within(rates: list[Rate], low: int, high: int) -> list[Rate]:
    """Return the rates of sorting rules with `low` to `high` updates."""
    return [rate for rate in rates if rate.rule in SORTING and low <= rate.n <= high]
