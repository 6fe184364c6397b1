"""Measure how the time of a round and the memory of its processes grow: with workers, model, servers, hosts and rules.

    .venv/bin/python benchmarks/growth.py [--quick] [--only hosts] [--output benchmarks/results]

A round is what `round.py` measures: all updates are in their buffers, until the last worker has the new model. Without
`--output` the report is printed only.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import growth_report
from bars import write
from exchanges import yardstick
from hosts import Network
from launches import Case, Setting, measure
from processes import MeasurementError, clean_up_on_sigterm

HERE = Path(__file__).parent
GIGABITS = 1.0
Row = dict[str, Any]


@dataclass(frozen=True)
class Amount:
    """How much is measured.

    Attributes:
        workers: numbers of workers.
        sizes: of a model, in MB.
        servers: numbers of servers.
        hosts_mb: the models, in MB, between hosts.
        memory_workers: numbers of workers whose memory is looked at.
        repeats: launches of each.
    """

    workers: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    sizes: Sequence[int] = (1, 4, 16, 64, 256, 1024)
    servers: Sequence[int] = (1, 2, 4)
    hosts_mb: Sequence[int] = (16, 64)
    memory_workers: Sequence[int] = (4, 8)
    repeats: int = 2


QUICK = Amount((1, 4, 8), (1, 16, 64), (1, 2), (8,), (4,), 1)


def rounds_of(ranks: int, megabytes: int) -> int:
    """Return how many rounds a launch measures."""
    return max(3, min(30, 2000 // (ranks * megabytes)))


def launch(setting: Setting, megabytes: Sequence[int], repeats: int, **more: Any) -> list[Row]:
    """Return a row for each size: the median of the launches' medians and their range, or the problem."""
    cases = [Case(size << 18, rounds_of(setting.workers, size)) for size in megabytes]
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
    """Return the bytes per second that two processes move at once when they copy: what they read and write."""
    found = [yardstick(4).measure(2, [Case(megabytes << 18, 6)], 60).rounds[0] for _ in range(repeats)]
    return 2 * 4 * 2 * megabytes * 2**20 / statistics.median(statistics.median(each) for each in found)


def by_workers(amount: Amount) -> list[Row]:
    """More workers on this machine, with a model of 4 MB."""
    rows = [row for n in amount.workers for row in launch(Setting(n), [4], amount.repeats)]
    return _with_bytes(rows, copy_speed(4, amount.repeats))


def by_size(amount: Amount) -> list[Row]:
    """A larger model, with two workers on this machine: of 1 GB, more of them need more memory than many have."""
    return _with_bytes(launch(Setting(2), amount.sizes, amount.repeats), copy_speed(64, amount.repeats))


def by_servers(amount: Amount) -> list[Row]:
    """More servers on this machine, with 4 workers and a model of 64 MB."""
    rows = [row for k in amount.servers for row in launch(Setting(4, k), [64], amount.repeats)]
    return _with_bytes(rows, copy_speed(64, amount.repeats))


def _with_bytes(rows: list[Row], speed: float) -> list[Row]:
    """Add what a round moves (n updates and the model read, the model written), and what that costs at this speed."""
    for row in rows:
        row["bytes"] = (row["workers"] + 2) * row["megabytes"] * 2**20
        row["bound"] = row["bytes"] / speed
    return rows


_SINK = """
import socket, time
listener = socket.create_server(("0.0.0.0", 5000))
connection, _ = listener.accept()
connection.recv(1)
began, count = time.monotonic(), 0
while part := connection.recv(1 << 20):
    count += len(part)
print(count / (time.monotonic() - began))
"""
_SOURCE = """
import socket, time
part = bytes(1 << 20)
for _ in range(100):
    try:
        connection = socket.create_connection(("host1", 5000))
        break
    except OSError:
        time.sleep(0.05)
for _ in range(64):
    connection.sendall(part)
"""


def link_speed(network: Network) -> float:
    """Return the bytes per second that one TCP connection carries between two hosts."""
    sink = subprocess.Popen([*network.enter("host1"), sys.executable, "-c", _SINK], stdout=subprocess.PIPE, text=True)
    subprocess.run([*network.enter("host2"), sys.executable, "-c", _SOURCE], check=True, timeout=60)
    return float(sink.communicate(timeout=60)[0])


def by_hosts(amount: Amount) -> list[Row]:
    """A role on each host, with links of 1 Gbit/s, 4 workers."""
    rows = []
    for servers in (1, 2, 4):
        with Network(4 + servers, GIGABITS) as network:
            speed = link_speed(network)
            found = launch(Setting(4, servers), amount.hosts_mb, 1, network=network)
        for row in found:
            size = row["megabytes"] * 2**20
            bytes_of_slowest = max(size, row["workers"] * size / servers)
            rows.append({**row, "bound": bytes_of_slowest / (GIGABITS * 1e9 / 8), "tcp": bytes_of_slowest / speed})
    return rows


MEMORY_MB = 64
RULES = ("average", "trimmed_mean", "phocas", "median", "zeno")


def memory(amount: Amount) -> list[Row]:
    """The peak of each role's memory, by rule, as multiples of the model, over what it needs for next to none.

    Between hosts of their own a few of them once more: there updates are messages, here they are shared memory.
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
            except MeasurementError as error:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything, once")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--repeats", type=int, help="launches of each point")
    parser.add_argument("--output", type=Path, help="the folder for growth.md and growth.png")
    args = parser.parse_args()
    clean_up_on_sigterm()
    amount = QUICK if args.quick else Amount()
    if args.repeats:
        amount = replace(amount, repeats=args.repeats)
    found: dict[str, list[Row]] = {}
    problems = {}
    for part in args.only:
        try:
            found[part] = PARTS[part](amount)
        except MeasurementError as error:
            problems[part] = str(error)
    text = growth_report.report(found, problems)
    print(text)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "growth.md").write_text(text, encoding="utf-8")
        write(args.output, "growth", growth_report.bars(found))
        growth_report.draw(found, args.output / "growth.png")


if __name__ == "__main__":
    main()
