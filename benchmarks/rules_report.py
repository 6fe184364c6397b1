"""The report of `rules.py`: tables, a plot and bars."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
from bars import Bar
from byzfl_peer import THREADS, Beside
from machine import description

BLOCKS = 20
BYZFL = ("trimmed_mean", "median")
"""Rules with a target for the ratio of ByzFL's time to ours."""
MEAN = 1.3
"""The target of `average`, in read passes: every mean reads each update once."""
SERIES = (
    "average",
    "average, added to the model",
    "trimmed_mean",
    "median",
    "phocas",
    "zeno",
    "zeno, half refused",
    "zeno, half turned",
)
Times = dict[tuple[str, int, str], list[float]]  # (what, n, by) -> seconds


def report(
    args: argparse.Namespace,
    times: Times,
    beside: dict[tuple[str, int], Beside],
    others: float,
    problem: str,
    gigabytes: float,
) -> tuple[str, list[Bar]]:
    """Return the tables and the bars."""
    middle = {key: statistics.median(found) for key, found in times.items()}
    bars = []
    lines = [
        "# Rules",
        "",
        f"{description()}. Updates of {gigabytes:.2f} GB in all, in {BLOCKS} blocks; seconds are medians of "
        f"{args.repeats} runs, in turn; others used {others:.1f} cores meanwhile. A read pass takes "
        + ", ".join(f"{middle['read', args.updates[-1], t]:.3f} s with {t} thread{'s' * (t == '2')}" for t in "12")
        + ". Kernels give the definitions' results to the last bit (checked here, too).",
        "",
        "## Time over that of a read pass, 2 threads",
        "",
        "| Rule | " + " | ".join(f"n = {n}" for n in args.updates) + " |",
        "|---|" + "---:|" * len(args.updates),
    ]
    for name in SERIES:
        ratios = [middle[name, n, "2"] / middle["read", n, "2"] for n in args.updates]
        lines.append(f"| {name} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
        for n, ratio in zip(args.updates, ratios, strict=True):
            limit = MEAN if name == "average" else 2.5 if n <= 16 else 5.0
            bars.append(Bar.at_most(f"{name}, n = {n}: time over a read pass, 2 threads", ratio, limit))
    lines += [
        "",
        "Of the updates half refused it takes every value to tell which those are; those half turned point away from "
        "the validator's, as an attack's do.",
    ]
    ratio = middle["zeno++", 1, "1"] / middle["read for zeno++", 1, "1"]
    bars.append(Bar.at_most("zeno++: time over a read pass of the update and v, 1 thread", ratio, 2.5))
    lines += ["", f"zeno++ on one update, 1 thread: {ratio:.2f} read passes over the update and the validator's own."]
    if 16 in args.updates:
        lines += [
            "",
            "## Seconds, n = 16",
            "",
            "`numpy alone`: one run, on one core.",
            "",
            "| Rule | 1 thread | 2 threads | numpy alone |",
            "|---|---:|---:|---:|",
        ]
        for name in SERIES:
            cells = [middle.get((name, 16, by)) for by in ("1", "2", "numpy")]
            lines.append(f"| {name} | " + " | ".join(f"{cell:.3f}" if cell else "–" for cell in cells) + " |")
    lines += ["", *_beside(beside), f"ByzFL is left out where no number is shown: {problem}." if problem else ""]
    bars += [Bar.at_least(f"{name}, n = {n}: times ByzFL's speed", one.ratio, 15) for (name, n), one in beside.items()]
    return "\n".join(lines).rstrip("\n") + "\n", bars


def _beside(beside: dict[tuple[str, int], Beside]) -> list[str]:
    """Return the table of hpcps beside ByzFL, whose last column is that of ByzFL divided by that of hpcps."""
    if not beside:
        return []
    lines = [
        "## Beside ByzFL 0.0.11",
        "",
        f"Medians of as many runs of both, in turn, after runs that are not counted. Both may use {THREADS} cores. "
        "ByzFL gets numpy arrays or torch tensors, whichever is faster. Of 4 updates `trimmed_mean` trims none, so "
        "both compute a mean.",
        "",
        "| Rule | n | hpcps, seconds | ByzFL, seconds | gets | ByzFL over hpcps |",
        "|---|---:|---:|---:|---|---:|",
    ]
    for (name, n), one in beside.items():
        ours, theirs = (f"{statistics.median(those):.3g}" for those in (one.ours, one.theirs))
        lines.append(f"| {name} | {n} | {ours} | {theirs} | {one.form} | {one.ratio:.3g} |")
    return [*lines, ""]


def draw(args: argparse.Namespace, times: Times, file: Path) -> None:
    """Plot the ratios to a read pass against the number of updates."""
    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for name, marker in zip(SERIES, "osD^vP*X", strict=True):
        ratios = [
            statistics.median(times[name, n, "2"]) / statistics.median(times["read", n, "2"]) for n in args.updates
        ]
        axes.plot(args.updates, ratios, marker=marker, markersize=4, label=name)
    axes.hlines([2.5], min(args.updates), 16, colors="#777777", linestyles="dashed")
    axes.hlines([5.0], 16, max(16, *args.updates), colors="#777777", linestyles="dashed", label="wanted")
    axes.axhline(MEAN, color="#777777", linestyle="dotted", label="wanted of average")
    axes.set_xscale("log", base=2)
    axes.set_xticks(args.updates, [str(n) for n in args.updates])
    axes.set_ylim(0, 7.5)
    axes.set_xlabel("Updates (the same bytes in all)")
    axes.set_ylabel("Time over that of one read pass")
    axes.legend(fontsize=8, ncols=2, loc="upper left")
    figure.savefig(file, dpi=150)
    plt.close(figure)
