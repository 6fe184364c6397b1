"""The table of `hpcps doctor --hostfile`: a row for each host, with a mark at each value that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcps.launch.doctor.comparison import Difference
    from hpcps.launch.doctor.hosts import HostReport, HostsReport

MARK = "*"
_HEADS = {
    "host": "host",
    "python": "Python",
    "hpcps": "hpcps",
    "mpi": "MPI",
    "mpi4py": "mpi4py",
    "numpy": "numpy",
    "torch": "torch",
    "cores": "cores",
    "memory": "free memory",
    "shm": "/dev/shm",
    "tmp": "/tmp",
    "gpus": "GPUs",
    "shared": "shared",
    "clock": "clock",
    "latency": "latency",
    "bandwidth": "bandwidth",
}

_COMPARED = ("python", "hpcps", "mpi", "mpi4py", "numpy", "torch", "cores", "gpus")
"""Columns that are left out if all hosts have the same value: a line above the table has it."""
_NONE = "-"


def hosts_table(report: HostsReport, wrong: Sequence[Difference]) -> Iterator[str]:
    """Yield the lines of the table, and a sentence for each value that is wrong."""
    marked = {(each.host, each.column) for each in wrong}
    rows = [_cells(each, report) for each in report.hosts]
    alike = [key for key in _COMPARED if len({row[key] for row in rows if row[key] != _NONE}) == 1]
    if alike:
        able = next(row for row in rows if row[alike[0]] != _NONE)
        yield "on all hosts: " + ", ".join(f"{_HEADS[key]} {able[key]}" for key in alike)
        yield ""
    shown = [key for key in _HEADS if key not in alike]
    for row, each in zip(rows, report.hosts, strict=True):
        row |= {key: row[key] + MARK for key in shown if (each.name, key) in marked}
    widths = {key: max(len(row[key]) for row in [_HEADS, *rows]) for key in shown}
    for row in [_HEADS, *rows]:
        yield "  ".join(f"{row[key]:<{widths[key]}}" for key in shown).rstrip()
    yield ""
    count, measured = len(report.hosts), {frozenset((link.source, link.target)) for link in report.links}
    pairs = f", {len(measured)} of {report.pairs} pairs of hosts" if report.pairs else ""
    yield f"{count} host{'s' * (count != 1)}{pairs}, in {report.seconds:.0f} s; latency, bandwidth: medians of a host"
    if not wrong:
        yield "no host differs from the others" if count > 1 else "nothing is wrong with the host"
        return
    hosts = len({each.host for each in wrong})
    yield f"{MARK} {len(wrong)} problem{'s' * (len(wrong) != 1)} of {hosts} host{'s' * (hosts != 1)}:"
    yield from (f"  {each.host}: {each.text}" for each in wrong)


def _cells(each: HostReport, report: HostsReport) -> dict[str, str]:
    """Return the text of each cell of a host."""
    from hpcps.launch.doctor.comparison import gpus_text, rate_text

    if not each.facts:
        return {**dict.fromkeys(_HEADS, _NONE), "host": each.name}
    facts = each.facts
    packages = facts["packages"]
    links = [link for link in report.links if link.source == each.name]
    delays = [link.latency for link in links if link.latency is not None]
    rates = [link.bandwidth for link in links if link.bandwidth is not None]
    return {
        "host": each.name,
        "python": facts["python"],
        "hpcps": facts["hpcps"],
        "mpi": facts["mpi"] or "none",
        **{name: packages.get(name, "none") for name in ("mpi4py", "numpy", "torch")},
        "cores": str(facts["cores"]),
        "memory": _NONE if facts["memory"] is None else _bytes(facts["memory"]),
        **{key: "none" if facts[key] is None else _bytes(facts[key]["free"]) for key in ("shm", "tmp")},
        "gpus": gpus_text(facts),
        "shared": "yes" if each.shares else "no",
        "clock": _NONE if each.ahead is None else f"{round(each.ahead, 3) + 0.0:+.3f} s",
        "latency": f"{1e6 * median(delays):.0f} us" if delays else _NONE,
        "bandwidth": rate_text(median(rates)) if rates else _NONE,
    }


def _bytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
