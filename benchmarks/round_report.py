"""The report of `round.py`: tables, a plot and bars."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from bars import Bar
from exchanges import ABSENT, Exchange
from machine import description

# Exchange -> case (ranks, MB) -> the median round of each launch, in seconds.
Found = dict[str, dict[tuple[int, int], list[float]]]

ADOPTED = " adopted"
"""The suffix of the name of an exchange of hpcps, for the time until every worker has the model where it trains."""
PACKED = " packed"
"""That for the same time from before packing, which writes the update to shared memory."""


@dataclass
class Findings:
    """The results so far.

    Attributes:
        found: the times.
        absent: the exchanges that were not measured, and the reasons.
        failed: the exchanges that failed, and how.
        repeats: the number of finished turns.
    """

    found: Found = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    repeats: int = 0


class Table:
    """The numbers of the report.

    A case is (ranks, MB); times are seconds.
    """

    def __init__(self, found: Found, exchanges: Sequence[Exchange]) -> None:
        self.found = found
        self.ours = [e for e in exchanges if e.ours and e.name in found]
        self.others = [e for e in exchanges if not e.ours and e.name in found]
        self.cases = sorted({case for times in found.values() for case in times})

    def time(self, name: str, case: tuple[int, int]) -> float | None:
        """Return the median of the launches, if it was measured."""
        times = self.found.get(name, {}).get(case)
        return statistics.median(times) if times else None

    def best(self, exchanges: Sequence[Exchange], case: tuple[int, int], suffix: str = "") -> tuple[str, float] | None:
        """Return the fastest of some exchanges and its time."""
        times = [(e.title, time) for e in exchanges if (time := self.time(e.name + suffix, case)) is not None]
        return min(times, key=lambda pair: pair[1]) if times else None

    def bound(self, case: tuple[int, int]) -> float | None:
        """Return the time of the round's bytes at the bandwidth of two processes that copy.

        A round reads n updates and the model and writes the model: (n + 2) M bytes. A copy moves 2 M bytes, and each
        process of the yardstick copies n arrays in a round.
        """
        ranks, _ = case
        copies = self.time("copy-2", case)
        return None if copies is None else (ranks + 2) / 2 * copies / ranks / 2

    def verdicts(self) -> list[dict[str, Any]]:
        """Return, for each case, the ratios of our times to that of the best peer and to the bound.

        `ours` is the time until every worker has the model where it trains, as a peer's ranks have their result.
        `packed` is this time from before packing. `in_place` is the time until every worker can read the model; the
        bound is that of these bytes.
        """
        rows = []
        for case in self.cases:
            ours, in_place = self.best(self.ours, case, ADOPTED), self.best(self.ours, case)
            other, bound = self.best(self.others, case), self.bound(case)
            if ours is None or in_place is None:
                continue
            row: dict[str, Any] = {"ranks": case[0], "megabytes": case[1], "ours": ours[1], "by": ours[0]}
            row["in_place"] = in_place[1]
            packed = self.best(self.ours, case, PACKED)
            if other is not None and packed is not None:
                row["packed_ratio"] = packed[1] / other[1]
            if other is not None:
                row |= {"best_peer": other[0], "peer": other[1], "ratio": ours[1] / other[1]}
                row["in_place_ratio"] = in_place[1] / other[1]
            if bound is not None:
                row |= {"bound": bound, "of_bound": in_place[1] / bound}
            rows.append(row)
        return rows


def report(table: Table, findings: Findings, others: float) -> str:
    """Write the tables."""
    lines = [
        "# A synchronous round, beside peers",
        "",
        f"{description()}; other processes used {others:.2f} cores meanwhile. Written by `benchmarks/round.py`.",
        "",
        "Every rank has an update of M bytes of float32 in a buffer; time runs until the last rank has the result. "
        "hpcps: the mean, added to the model, with the real roles over mpirun, until every worker has added its "
        "residual and copied the model to where it trains. Its buffer is the shared memory that others read, and "
        "packing, which subtracts two models, writes the update there; peers copy their buffers within the time. "
        "With packing: the clock begins before packing. Peers: the sum, in the buffer of every rank. In place: "
        "until every worker can read the new model in shared memory, measured in every other round. A worker that has "
        "the result waits for the others before its next step, as the ranks of a peer do. Milliseconds: "
        f"the median of {findings.repeats} launches (the range of their medians), taken in turn; results checked. The "
        "bound is what reading n updates and the model and writing the model costs at the bandwidth of two processes "
        "that copy arrays of this size; it holds for a round in place.",
    ]
    for ranks in sorted({ranks for ranks, _ in table.cases}):
        sizes = [size for r, size in table.cases if r == ranks]
        lines += ["", f"## {ranks} ranks", "", "| | " + " | ".join(f"{size} MB" for size in sizes) + " |"]
        lines += ["|---|" + "---|" * len(sizes)]
        for exchange in [*table.ours, *table.others]:
            named = [(exchange.title, exchange.name)]
            if exchange.ours:
                named = [(exchange.title, exchange.name + ADOPTED), ("… with packing", exchange.name + PACKED)]
                named += [("… in place", exchange.name)]
            for title, name in named:
                cells = [_cell(table.found.get(name, {}).get((ranks, size))) for size in sizes]
                lines.append(f"| {title} | " + " | ".join(cells) + " |")
        for processes in (1, 2):
            times = [table.time(f"copy-{processes}", (ranks, size)) for size in sizes]
            cells = ["–" if t is None else f"{t / ranks * 1e3:.2f}" for t in times]
            lines.append(
                f"| one numpy copy, {processes} process{'es at once' * (processes > 1)} | {' | '.join(cells)} |"
            )
        bounds = [table.bound((ranks, size)) for size in sizes]
        lines.append("| bound | " + " | ".join("–" if b is None else f"{b * 1e3:.1f}" for b in bounds) + " |")
        verdicts = {row["megabytes"]: row for row in table.verdicts() if row["ranks"] == ranks}
        ratios = (
            ("ratio", "hpcps / best peer"),
            ("packed_ratio", "with packing / best peer"),
            ("in_place_ratio", "in place / best peer"),
            ("of_bound", "in place / bound"),
        )
        for key, name in ratios:
            cells = [f"**{verdicts[size][key]:.2f}**" if key in verdicts.get(size, {}) else "–" for size in sizes]
            lines.append(f"| **{name}** | " + " | ".join(cells) + " |")
    lines += ["", "![Time of a round against its size](round.png)"]
    if findings.failed:
        lines += ["", "Failed:", "", *(f"- {name}: {how}" for name, how in sorted(findings.failed.items()))]
    lines += ["", "Not measured here:", ""]
    lines += [f"- {name}: {reason}" for name, reason in sorted({**findings.absent, **ABSENT}.items())]
    return "\n".join(lines) + "\n"


def bars(verdicts: Sequence[dict[str, Any]]) -> list[Bar]:
    """Return the bars: the best peer's time, also with packing; in place at 64 MB half of it, 1.5 times the bound."""
    found = []
    for row in verdicts:
        what = f"Round of {row['ranks']} workers, {row['megabytes']} MB"
        half = row["megabytes"] == 64
        if "ratio" in row:
            found.append(Bar.at_most(f"{what}, to {row['best_peer']}", row["ratio"], 1.0))
            if "packed_ratio" in row:
                found.append(Bar.at_most(f"{what}, with packing, to {row['best_peer']}", row["packed_ratio"], 1.0))
            limit = 0.5 if half else 1.0
            found.append(Bar.at_most(f"{what}, in place, to {row['best_peer']}", row["in_place_ratio"], limit))
        if "of_bound" in row and half:
            found.append(Bar.at_most(f"{what}, in place, to its bytes at the speed of copies", row["of_bound"], 1.5))
    return found


def _cell(times: Sequence[float] | None) -> str:
    if not times:
        return "–"
    low, high = min(times) * 1e3, max(times) * 1e3
    return f"{statistics.median(times) * 1e3:.1f} ({low:.1f} to {high:.1f})" if len(times) > 1 else f"{low:.1f}"


def draw(table: Table, path: Path) -> None:
    """Plot time against size, one panel per number of ranks."""
    counts = sorted({ranks for ranks, _ in table.cases})
    figure, panels = plt.subplots(
        1, len(counts), figsize=(4.6 * len(counts), 4.2), layout="constrained", squeeze=False, sharey=True
    )
    for axes, ranks in zip(panels[0], counts, strict=True):
        sizes = [size for r, size in table.cases if r == ranks]
        for place, exchange in enumerate([*table.ours, *table.others]):
            thin: dict[str, Any] = {"linewidth": 1, "marker": ".", "color": f"C{place}"}
            named = [(exchange.title, exchange.name, thin)]
            if exchange.ours:
                named = [(exchange.title, exchange.name + ADOPTED, thin | {"linewidth": 2.2, "marker": "o"})]
                packed = thin | {"linewidth": 2.2, "linestyle": ":"}
                named += [(f"{exchange.title}, with packing", exchange.name + PACKED, packed)]
                named += [(f"{exchange.title}, in place", exchange.name, thin | {"linestyle": "--"})]
            for title, name, style in named:
                times = [(size, time) for size in sizes if (time := table.time(name, (ranks, size))) is not None]
                axes.plot([size for size, _ in times], [time * 1e3 for _, time in times], label=title, **style)
        bounds = [(size, bound) for size in sizes if (bound := table.bound((ranks, size))) is not None]
        axes.plot([s for s, _ in bounds], [b * 1e3 for _, b in bounds], color="0.5", linestyle=":", label="bound")
        axes.set(xscale="log", yscale="log", title=f"{ranks} ranks", xlabel="update, MB")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("round, ms")
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=7
    )
    figure.savefig(path, dpi=120)
    plt.close(figure)
