"""Measure the time of a round and the memory of its processes against workers, model size, servers, hosts and rules.

    .venv/bin/python benchmarks/growth.py [--quick] [--only hosts] [--output benchmarks/results]

A round is measured as in `round.py`: it begins when all updates are in their buffers, and ends when the last worker has
the new model. Without `--output` the report is only printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import growth_report
from bars import write
from exchanges import yardstick
from hosts import Network, link_speed
from launches import Case, Setting, measure
from processes import TOO_LARGE, MeasurementError, NotHereError, clean_up_on_sigterm

HERE = Path(__file__).parent
GIGABITS = 1.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """The extent of the measurements.

    Attributes:
        workers: the numbers of workers.
        sizes: the sizes of the model, in MB.
        servers: the numbers of servers.
        hosts_mb: the sizes of the model between hosts, in MB.
        memory_workers: the numbers of workers for which memory is measured.
        repeats: the number of launches of each point.
    """

    workers: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    sizes: Sequence[int] = (1, 4, 16, 64, 256, 1024)
    servers: Sequence[int] = (1, 2, 4)
    hosts_mb: Sequence[int] = (16, 64)
    memory_workers: Sequence[int] = (4, 8)
    repeats: int = 2


QUICK = Amount((1, 4, 8), (1, 16, 64), (1, 2), (8,), (4,), 1)


def rounds_of(ranks: int, megabytes: int) -> int:
    """Return the number of rounds that a launch measures."""
    return max(3, min(30, 2000 // (ranks * megabytes)))


def launch(setting: Setting, megabytes: Sequence[int], repeats: int, *, packs: bool = False, **more: Any) -> list[Row]:
    """Return a row for each size: the median of the launches' medians and their range, or the problem."""
    cases = [Case(size << 18, rounds_of(setting.workers, size), packs=packs) for size in megabytes]
    times: list[list[float]] = [[] for _ in cases]
    problem = ""
    for _ in range(repeats):
        began = time.monotonic()
        try:
            measured = measure(setting, cases, 240, **more)
        except MeasurementError as error:
            problem = str(error)
            break
        problem = measured.problem or problem
        for found, seconds in zip(times, measured.rounds, strict=True):
            if seconds:
                found.append(statistics.median(seconds))
        last = [(size, found[-1]) for size, found in zip(megabytes, times, strict=True) if found]
        told = ", ".join(f"{size} MB {seconds * 1e3:.1f} ms" for size, seconds in last)
        who = f"{setting.workers} workers, {setting.servers} servers"
        print(f"{who}: {told} {measured.problem} ({time.monotonic() - began:.0f} s)", flush=True)
    rows: list[Row] = []
    for size, found in zip(megabytes, times, strict=True):
        row: Row = {"workers": setting.workers, "servers": setting.servers, "megabytes": size}
        if found:
            row |= {"seconds": statistics.median(found), "low": min(found), "high": max(found)}
        else:
            row["problem"] = problem or "it was not finished"
        rows.append(row)
    return rows


def copy_speed(megabytes: int, repeats: int) -> float:
    """Return the bytes per second that two processes together read and write when they copy at the same time.

    Raises:
        MeasurementError: they failed.
    """
    found = []
    for _ in range(repeats):
        measured = yardstick(4).measure(2, [Case(megabytes << 18, 6)], 60)
        if measured.problem:
            raise MeasurementError(f"the copies: {measured.problem}")
        found.append(measured.rounds[0])
    return 2 * 4 * 2 * megabytes * 2**20 / statistics.median(statistics.median(each) for each in found)


def by_workers(amount: Amount) -> list[Row]:
    """More workers on this machine, with a model of 4 MB."""
    speed = copy_speed(4, amount.repeats)
    return _with_bytes([row for n in amount.workers for row in launch(Setting(n), [4], amount.repeats)], speed)


def by_size(amount: Amount) -> list[Row]:
    """A larger model, with two workers on this machine: with 1 GB, more workers need too much memory for many."""
    speed = copy_speed(64, amount.repeats)
    return _with_bytes(launch(Setting(2), amount.sizes, amount.repeats), speed)


def by_servers(amount: Amount) -> list[Row]:
    """More servers on this machine, with 4 workers and a model of 64 MB."""
    speed = copy_speed(64, amount.repeats)
    return _with_bytes([row for k in amount.servers for row in launch(Setting(4, k), [64], amount.repeats)], speed)


def _with_bytes(rows: list[Row], speed: float) -> list[Row]:
    """Add the bytes of a round (n updates and the model read, the model written), and their time at this speed."""
    for row in rows:
        row["bytes"] = (row["workers"] + 2) * row["megabytes"] * 2**20
        row["bound"] = row["bytes"] / speed
    return rows


def by_hosts(amount: Amount) -> list[Row]:
    """A role on each host, with links of 1 Gbit/s, 4 workers."""
    rows: list[Row] = []
    for servers in (1, 2, 4):
        try:
            with Network(4 + servers, GIGABITS) as network:
                speed = link_speed(network)
                found = launch(Setting(4, servers), amount.hosts_mb, 1, network=network)
        except NotHereError:
            raise
        except MeasurementError as error:
            rows += [{"servers": servers, "megabytes": size, "problem": str(error)} for size in amount.hosts_mb]
            continue
        for row in found:
            size = row["megabytes"] * 2**20
            bytes_of_slowest = max(size, row["workers"] * size / servers)
            rows.append({**row, "bound": bytes_of_slowest / (GIGABITS * 1e9 / 8), "tcp": bytes_of_slowest / speed})
    return rows


MEMORY_MB = 64
RULES = ("average", "trimmed_mean", "phocas", "median", "zeno")


def memory(amount: Amount) -> list[Row]:
    """The peak memory of each role, by rule, in multiples of the model, minus the memory for a very small model.

    Some points are also measured between hosts, where updates are messages; on one host they are in shared memory.
    """
    rows = []
    for n in amount.memory_workers:
        plain = Setting(n)
        ruled = [Setting(n, validators=1, rule=f'{{ kind = "{rule}" }}') for rule in RULES]
        rows += [_memory_row(setting, None) for setting in (plain, *ruled)]
        for setting in (plain, ruled[RULES.index("phocas")], ruled[RULES.index("zeno")]):
            try:
                with Network(setting.processes, 10 * GIGABITS) as network:
                    rows.append(_memory_row(setting, network))
            except NotHereError as error:
                print(f"no hosts here: {error}")
    return rows


def _memory_row(setting: Setting, network: Network | None) -> Row:
    rule = setting.rule.split('"')[1]
    row: Row = {"workers": setting.workers, "validators": setting.validators, "rule": rule, "hosts": bool(network)}
    try:
        small, large = (_footprint(setting, size, network) for size in (1, MEMORY_MB))
    except MeasurementError as error:
        return {**row, "problem": str(error)}
    models = (MEMORY_MB - 1) * 2**20
    for role in ("worker", "validator", "server"):
        row[role] = {name: max(0.0, (large[role][name] - small[role][name]) / models) for name in ("pss", "own")}
    row["all"] = (large["all"] - small["all"]) / models
    where = "hosts" if network else "one host"
    print(f"memory, {setting.workers} workers, {rule}, {where}: {row['all']:.1f} models in all", flush=True)
    return row


def _footprint(setting: Setting, megabytes: int, network: Network | None) -> dict[str, Any]:
    measured = measure(setting, [Case(megabytes << 18, 6)], 120, watch_memory=True, network=network)
    if measured.problem:
        raise MeasurementError(measured.problem)
    footprint = measured.footprint
    assert footprint is not None, "it was watched"
    return {role: footprint.of(role) for role in ("worker", "validator", "server")} | {"all": footprint.total}


PARTS: dict[str, Callable[[Amount], list[Row]]] = {
    "workers": by_workers,
    "size": by_size,
    "servers": by_servers,
    "hosts": by_hosts,
    "memory": memory,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short version, one launch of each point")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--repeats", type=int, help="launches of each point")
    parser.add_argument("--output", type=Path, help="the folder for growth.md and growth.png")
    args = parser.parse_args()
    clean_up_on_sigterm()
    amount = QUICK if args.quick else Amount()
    if args.repeats:
        amount = replace(amount, repeats=args.repeats)
    found: dict[str, list[Row]] = {}
    problems: dict[str, str] = {}
    failed = []
    for part in args.only:
        try:
            found[part] = PARTS[part](amount)
        except NotHereError as error:
            problems[part] = str(error)
        except MeasurementError as error:
            problems[part] = str(error)
            failed.append(f"{part}: {error}")
        # The results so far are written, whatever a later part does.
        if args.output:
            write_down(found, problems, args.output)
    print(growth_report.report(found, problems))
    for part, rows in found.items():
        failed += [f"{part}: {row['problem']}" for row in rows if row.get("problem", TOO_LARGE) != TOO_LARGE]
    for line in failed:
        print("failed:", line, flush=True)
    return 1 if failed else 0


def write_down(found: dict[str, list[Row]], problems: dict[str, str], output: Path) -> None:
    """Write the report, the plot and the bars of the results so far."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "growth.md").write_text(growth_report.report(found, problems), encoding="utf-8")
    write(output, "growth", growth_report.bars(found))
    growth_report.draw(found, output / "growth.png")


if __name__ == "__main__":
    sys.exit(main())
