"""Compares hosts: which of them differs from the others, and what each lacks for a launch on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hpcps.launch.dev_shm import Space, shortage
from hpcps.launch.doctor.hosts import SLOW, HostLink, HostReport, HostsReport
from hpcps.records.run_directory import FREE_SPACE_NEEDED

CLOCK = 0.5
"""Seconds that a clock may differ from the median of all clocks."""
FREE_SHARE = 0.5
"""The least part of the median free memory that a host may have."""
LATE = 5.0
"""How many times the median latency a link may have, if that is more than `LATE_SECONDS`."""
LATE_SECONDS = 200e-6

Facts = Mapping[str, Any]
_EQUAL: dict[str, tuple[str, Callable[[Facts], Any]]] = {
    "python": ("Python", lambda facts: facts["python"]),
    "hpcps": ("hpcps", lambda facts: facts["hpcps"]),
    "mpi": ("MPI", lambda facts: facts["mpi"] or "none"),
    "mpi4py": ("mpi4py", lambda facts: facts["packages"].get("mpi4py", "none")),
    "torch": ("torch", lambda facts: facts["packages"].get("torch", "none")),
    "numpy": ("numpy", lambda facts: facts["packages"].get("numpy", "none")),
    "cores": ("the number of cores", lambda facts: facts["cores"]),
    "gpus": ("GPUs", lambda facts: gpus_text(facts)),
}
"""The facts that all hosts share, by column: the name for people, and where they are."""


@dataclass(frozen=True)
class Difference:
    """One thing that is wrong with a host.

    Attributes:
        host: its name.
        column: the column of the table that shows it.
        text: a sentence for people, without the name of the host.
    """

    host: str
    column: str
    text: str


def gpus_text(facts: Facts) -> str:
    """Return the GPUs of a host and their driver."""
    counts: Counter[str] = Counter(facts["gpus"])
    names = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts.items())
    return f"{names} (driver {facts['driver']})" if names else "none"


def differences(report: HostsReport) -> list[Difference]:
    """Return what is wrong with each host, in the order of the host file."""
    able = [each for each in report.hosts if each.facts]
    found = [Difference(each.name, "host", each.problem) for each in report.hosts if not each.facts]
    for column, (name, fact) in _EQUAL.items():
        found += _odd(able, column, name, fact)
    found += _clocks(able)
    for each in able:
        found += _space(each, able)
        if not each.shares:
            what = f"{report.folder} there is another folder than here: all hosts have to share the results folder"
            found.append(Difference(each.name, "shared", f"{what}; choose another one with --results"))
        if each.network:
            found.append(Difference(each.name, "latency", f"the network was not measured: {each.network}"))
    found += _links(report.links)
    order = {each.name: place for place, each in enumerate(report.hosts)}
    return sorted(found, key=lambda each: order[each.host])


def _odd(hosts: Sequence[HostReport], column: str, name: str, fact: Callable[[Facts], Any]) -> Iterator[Difference]:
    """Yield the hosts whose value is not that of most hosts; if no value is more frequent, not that of the first."""
    values = {each.name: fact(each.facts) for each in hosts}
    if len(set(values.values())) < 2:
        return
    common, count = Counter(values.values()).most_common(1)[0]
    where = f"{count} hosts" if count > 1 else next(iter(values))
    for host, value in values.items():
        if value != common:
            yield Difference(host, column, f"{name}: {value}, and {common} on {where}")


def _clocks(hosts: Sequence[HostReport]) -> Iterator[Difference]:
    known = {each.name: each.ahead for each in hosts if each.ahead is not None}
    middle = _middle(list(known.values()))
    for host, ahead in known.items():
        off = ahead - middle
        if abs(off) > CLOCK:
            side = "ahead of" if off > 0 else "behind"
            what = f"the clock is {abs(off):.1f} s {side} the others: synchronize it (chrony, ntpd)"
            yield Difference(host, "clock", what)


def _middle(values: list[float]) -> float:
    """Return a value that most are near to: the median; of two values the first, that of the host of the doctor."""
    return 0.0 if not values else values[0] if len(values) == 2 else median(values)


def _space(each: HostReport, hosts: Sequence[HostReport]) -> Iterator[Difference]:
    memory = each.facts["memory"]
    most = median(other.facts["memory"] or 0.0 for other in hosts)
    if memory is not None and memory < FREE_SHARE * most:
        what = f"{memory / 1e9:.1f} GB of memory are free, and {most / 1e9:.1f} GB in the median of all hosts"
        yield Difference(each.name, "memory", f"{what}: other programs may run there")
    shm, tmp = each.facts["shm"], each.facts["tmp"]
    if shm is None:
        yield Difference(each.name, "shm", "/dev/shm cannot be written: MPI sends messages within a host through it")
    elif short := shortage(each.host.slots, Space(**shm)):
        yield Difference(each.name, "shm", short)
    if tmp is None or tmp["free"] < FREE_SPACE_NEEDED:
        what = "cannot be written" if tmp is None else f"has {tmp['free'] / 1e6:.0f} MB free"
        yield Difference(each.name, "tmp", f"/tmp {what}: launchers write files there")


def _links(links: Sequence[HostLink]) -> Iterator[Difference]:
    for link in links:
        if link.problem:
            yield Difference(link.source, "bandwidth", f"no connection to {link.target}: {link.problem}")
    rates = [link.bandwidth for link in links if link.bandwidth is not None]
    delays = [link.latency for link in links if link.latency is not None]
    for link in links:
        if link.bandwidth is not None and link.bandwidth < SLOW * median(rates):
            what = f"sends {rate_text(link.bandwidth)} to {link.target}"
            yield Difference(link.source, "bandwidth", f"{what}, and {rate_text(median(rates))} in the median of links")
        # Each pair has one latency, and a link in each direction.
        late = link.latency is not None and link.latency > max(LATE * median(delays), LATE_SECONDS)
        if late and (link.target, link.source) > (link.source, link.target):
            what = f"a message to {link.target} takes {1e6 * (link.latency or 0.0):.0f} us"
            yield Difference(link.source, "latency", f"{what}, and {1e6 * median(delays):.0f} us in the median")


def rate_text(rate: float) -> str:
    """Return a bandwidth in bytes per second as a text."""
    return f"{rate / 1e9:.1f} GB/s" if rate >= 1e9 else f"{rate / 1e6:.1f} MB/s"
