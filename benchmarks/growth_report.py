"""The tables and plots of `growth.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from bars import Bar
from machine import description

from hpcps.execution.role_factory import PARTITION

Row = dict[str, Any]
FAR = 1.5
"""The report names a point if its time exceeds this multiple of the time of its bytes at the table's median speed."""


def report(found: Mapping[str, Sequence[Row]], problems: Mapping[str, str]) -> str:
    """Return the tables."""
    lines = [
        "# How a round grows",
        "",
        f"{description()}. Written by `benchmarks/growth.py`.",
        "",
        "Rule `average`, no validators, all updates sent. Time runs from the moment at which all updates are in their "
        "buffers until the last worker has the new model: medians of a launch's rounds, and of the launches (their "
        "range). A round of n workers reads n updates and the model and writes the model: (n + 2) M bytes. The bound "
        "is what that costs at the bandwidth of two processes that copy, measured in the same run.",
    ]
    for part, rows in found.items():
        lines += ["", *_SECTIONS[part](rows)]
    if found:
        lines += ["", "![Time of a round, and memory](growth.png)"]
    if problems:
        lines += ["", "Not measured here:", "", *(f"- {part}: {reason}" for part, reason in problems.items())]
    return "\n".join(lines) + "\n"


def _table(
    head: Sequence[str], keys: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], Sequence[str]]
) -> list[str]:
    """Return the lines of a table: of each row the values of its keys, and its cells or why it was not measured."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        known = [str(row[key]) for key in keys]
        known += ["–", row["problem"]] if "problem" in row else cells(row)
        lines.append(f"| {' | '.join([*known, *[''] * (len(head) - len(known))])} |")
    return lines


def _on_one_machine(title: str, key: str, name: str, why: str) -> Callable[[Sequence[Row]], list[str]]:
    """Return a function that writes the table of a sweep over one parameter."""

    def cells(row: Row) -> list[str]:
        speed, slower = row["bytes"] / row["seconds"] / 1e9, row["seconds"] / row["bound"]
        return [_time(row), f"{speed:.1f}", f"{slower:.2f}"]

    def section(rows: Sequence[Row]) -> list[str]:
        table = _table([name, "Round, ms", "Moved, GB/s", "Time / bound"], [key], rows, cells)
        return [f"## {title}", "", *table, "", _followed(rows, key, name), "", why]

    return section


def _time(row: Row) -> str:
    text = f"{row['seconds'] * 1e3:.1f}"
    return text if row["low"] == row["high"] else f"{text} ({row['low'] * 1e3:.1f} to {row['high'] * 1e3:.1f})"


def _followed(rows: Sequence[Row], key: str, name: str) -> str:
    """Return a sentence on the points whose time is not proportional to the bytes that they move."""
    timed = [row for row in rows if "seconds" in row]
    if not timed:
        return "Nothing was measured."
    usual = statistics.median(row["seconds"] / row["bytes"] for row in timed)
    far = [str(row[key]) for row in timed if row["seconds"] / row["bytes"] > FAR * usual]
    if not far:
        return f"Time follows the bytes: no point takes more than {FAR} times what is usual for a byte."
    return f"More than {FAR} times the usual time for a byte: {name} {', '.join(far)}."


def _hosts(rows: Sequence[Row]) -> list[str]:
    def cells(row: Row) -> list[str]:
        time, bound = row["seconds"], row["bound"]
        return [_time(row), f"{bound * 1e3:.0f}", f"**{bound / time:.2f}**", f"{row['tcp'] / time:.2f}"]

    head = ["Servers", "M, MB", "Round, ms", "Bound, ms", "Bound / time", "TCP's bound / time"]
    return [
        "## Between hosts",
        "",
        "4 workers and k servers, each on a host of its own (network namespaces on this machine), links of 1 Gbit/s "
        "each way. The bound is max(M / B, n M / (k B)) for B = 125 MB/s, headers of the network included; beside it, "
        "the same for what one TCP connection was measured to carry.",
        "",
        *_table(head, ["servers", "megabytes"], rows, cells),
        "",
        "What the bound leaves out: the headers of TCP, IP and Ethernet (4.4 % of a link), and the way of a partition "
        f"through a server, n times {PARTITION // 1024} KiB at the speed of its link, which a small model feels most. "
        "All hosts share this machine's cores, and with 4 servers their links carry 8 Gbit/s together: where those "
        "cores do anything else, links stand idle.",
    ]


def _memory(rows: Sequence[Row]) -> list[str]:
    def cells(row: Row) -> list[str]:
        found = [f"{row[r]['pss']:.1f} ({row[r]['own']:.1f})" for r in ("worker", "validator", "server")]
        return [found[0], found[1] if row["validators"] else "–", found[2], f"{row['all']:.1f}"]

    named = [{**row, "rule": f"`{row['rule']}`", "on": "hosts" if row["hosts"] else "one host"} for row in rows]
    head = ["Rule", "V", "Workers", "On", "A worker", "The validator", "The server", "All processes"]
    return [
        "## Memory",
        "",
        "Peaks over a run of a model of 64 MB, less those of a model of 1 MB, in models. A page that k processes share "
        "counts as the k-th part of one in each (PSS); in brackets what only that process has. V: validators. "
        "On one host all processes are here; hosts: each role on one of its own.",
        "",
        *_table(head, ["rule", "validators", "workers", "on"], named, cells),
        "",
        "On one host nobody copies an update: who combines them maps where they lie, so that half of each is its in "
        "the first number, which grows with the workers, and nothing in brackets. In brackets a validator has the "
        "model and its result, under `zeno` its own update as well. Who measures the model at the end of an epoch (the "
        "first validator, or the first worker) has two copies of it for a moment, which looks some tenths of a second "
        "apart see or do not.",
    ]


_SECTIONS: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "workers": _on_one_machine(
        "Workers",
        "workers",
        "Workers",
        "Where few bytes move, a round is messages and waking up: a wait sleeps between its polls, so that it leaves "
        "the cores to others. With more processes than cores each of them also waits for its turn on a core.",
    ),
    "size": _on_one_machine(
        "Size of the model (2 workers)",
        "megabytes",
        "MB",
        "The bound is that of arrays of 64 MB: a small model stays in the caches. Its round is messages and waking up.",
    ),
    "servers": _on_one_machine(
        "Servers (4 workers, 64 MB)",
        "servers",
        "Servers",
        "The bytes are the same for any number of servers: on one machine they share its cores and its memory.",
    ),
    "hosts": _hosts,
    "memory": _memory,
}


def bars(found: Mapping[str, Sequence[Row]]) -> list[Bar]:
    """Return the bars: 90 % of the bound between hosts, and memory that does not grow with the number of workers."""
    reached = []
    for row in found.get("hosts", ()):
        if "seconds" in row:
            what = f"4 workers, {row['servers']} servers, 1 Gbit/s, {row['megabytes']} MB: bound / time"
            reached.append(Bar.at_least(what, row["bound"] / row["seconds"], 0.9))
    between = [row for row in found.get("memory", ()) if row["hosts"] and "all" in row]
    for rule, validators in dict.fromkeys((row["rule"], row["validators"]) for row in between):
        few, *_, many = [row for row in between if (row["rule"], row["validators"]) == (rule, validators)] * 2
        if many["workers"] > few["workers"]:
            role = "validator" if validators else "server"
            more = (many[role]["pss"] - few[role]["pss"]) / (many["workers"] - few["workers"])
            reached.append(Bar.at_most(f"Memory of a {role} per further worker, `{rule}`, in models", more, 0.15))
    return reached


def draw(found: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Plot time against workers, size and servers between hosts, and memory by role."""
    parts = [part for part in ("workers", "size", "hosts", "memory") if found.get(part)]
    if not parts:
        return
    figure, panels = plt.subplots(1, len(parts), figsize=(3.9 * len(parts), 3.6), layout="constrained", squeeze=False)
    for axes, part in zip(panels[0], parts, strict=True):
        rows = [row for row in found[part] if "problem" not in row]
        if part == "memory":
            _draw_memory(axes, rows)
        elif part == "hosts":
            _draw_hosts(axes, rows)
        else:
            key, label = {"workers": ("workers", "workers (4 MB)"), "size": ("megabytes", "model, MB (2 workers)")}[
                part
            ]
            axes.plot([r[key] for r in rows], [r["seconds"] * 1e3 for r in rows], marker="o", label="measured")
            axes.plot([r[key] for r in rows], [r["bound"] * 1e3 for r in rows], ":", color="0.4", label="bound")
            axes.set(xscale="log", yscale="log", xlabel=label, ylabel="round, ms")
            axes.set_xticks([r[key] for r in rows], [str(r[key]) for r in rows])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_hosts(axes: Any, rows: Sequence[Row]) -> None:
    for number, size in enumerate(sorted({row["megabytes"] for row in rows})):
        mine = [row for row in rows if row["megabytes"] == size]
        servers = [row["servers"] for row in mine]
        axes.plot(servers, [row["seconds"] for row in mine], marker="o", color=f"C{number}", label=f"{size} MB")
        axes.plot(servers, [row["bound"] for row in mine], ":", color=f"C{number}")
    axes.set(xscale="log", yscale="log", xlabel="servers (1 Gbit/s; dotted: bound)", ylabel="round, s")
    axes.set_xticks(sorted({row["servers"] for row in rows}), sorted({str(row["servers"]) for row in rows}))
    # On so short a range the logarithmic axis has only one label of its own.
    times = [row[key] for row in rows for key in ("seconds", "bound")]
    ticks = [n for n in (0.1, 0.2, 0.5, 1, 2, 5, 10) if min(times) / 1.5 <= n <= 1.5 * max(times)]
    axes.set_yticks(ticks, [f"{n:g}" for n in ticks])


def _draw_memory(axes: Any, rows: Sequence[Row]) -> None:
    notes = [("" if row["validators"] else ", V = 0") + (", hosts" if row["hosts"] else "") for row in rows]
    names = [f"{row['rule']}{note}, n = {row['workers']}" for row, note in zip(rows, notes, strict=True)]
    for number, role in enumerate(("worker", "validator", "server")):
        places = [place + 0.25 * (1 - number) for place in range(len(rows))]
        axes.barh(places, [row[role]["pss"] for row in rows], 0.25, label=role)
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.set(xlabel="peak memory (PSS), models")
