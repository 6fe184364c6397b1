"""The logs of the published ESync code: the rounds of each device, and a table beside those of own runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import InputError, RunError
from hpcps.inputs import read_json, whole_number
from hpcps.records.imported_logs import LARGEST, MOST, ImportedRun, files_in, table_of_runs

COMPUTING = ("get_batch", "forward and backward", "local update")
QUERY, EVALUATION = "check ready", "evaluation"
AGGREGATING = ("global update", "global aggregate")
PHASES = (QUERY, *COMPUTING, *AGGREGATING, EVALUATION)
"""The phases of a local step in the reports."""

_LISTS = ("accuracy_list", "num_samples_list", "self_iters_list", "elapsed_time_list", "aggregate_time_list")


@dataclass(frozen=True)
class LoggedRound:
    """A round of one device; times are seconds.

    Attributes:
        samples: the samples of its local steps.
        time: the time since the start of the device's log, at the end of the round.
        compute: the time of its local steps; from a summary, all but the time of the aggregation.
        evaluate: the time of an evaluation; a summary counts it as computing.
        query: the time of the queries whether to aggregate; a summary counts it as computing.
        aggregate: the time of the aggregation: it sends, waits and receives.
        accuracy: the accuracy on the test set, if the device has evaluated the model.
    """

    samples: int
    time: float
    compute: float
    evaluate: float
    query: float
    aggregate: float
    accuracy: float | None


def read_reports(folder: Path) -> list[LoggedRound]:
    """Read `iter-1.txt`, `iter-2.txt`, … of a device.

    Raises:
        InputError: a report is missing or damaged, or its values cannot be those of one device.
    """
    numbers = {number: path for path in folder.glob("iter-*.txt") if (number := _number(path)) is not None}
    rounds: list[LoggedRound] = []
    for number in range(1, max(numbers, default=0) + 1):
        if number not in numbers:
            raise InputError(folder / f"iter-{number}.txt", f"is missing, but there is iter-{max(numbers)}.txt")
        rounds.append(_read_report(numbers[number]))
        _check_order(numbers[number], rounds)
    return rounds


def parse_summary(where: str, content: object) -> list[LoggedRound]:
    """Read the lists of one device in a summary.

    A summary drops accuracies of zero: then the accuracies belong to the last rounds.

    Raises:
        InputError: lists are missing, differ in length or have values that cannot be.
    """
    if not isinstance(content, Mapping):
        raise InputError(where, "expects an object with lists of rounds")
    lists: dict[str, list[float]] = {}
    for name in _LISTS:
        values = content.get(name)
        if not isinstance(values, list):
            raise InputError(f"{where}.{name}", "expects a list of numbers, one for each round")
        lists[name] = [_value(f"{where}.{name}[{place}]", value) for place, value in enumerate(values)]
    accuracies, *others = lists.values()
    count = len(others[0])
    for name, values in list(lists.items())[1:]:
        if len(values) != count:
            raise InputError(f"{where}.{name}", f"has {len(values)} rounds, but num_samples_list has {count}")
    if len(accuracies) > count:
        raise InputError(f"{where}.accuracy_list", f"has {len(accuracies)} rounds, but num_samples_list has {count}")
    known = [None] * (count - len(accuracies)) + [_share(f"{where}.accuracy_list", value) for value in accuracies]
    rounds: list[LoggedRound] = []
    before = 0.0
    for place, accuracy in enumerate(known):
        samples, _, time, aggregate = (values[place] for values in others)
        # Times of a summary are rounded to seconds, those of aggregations are not.
        computing = max(0.0, time - before - aggregate)
        rounds.append(LoggedRound(int(samples), time, computing, 0.0, 0.0, aggregate, accuracy))
        _check_order(f"{where}.elapsed_time_list[{place}]", rounds)
        before = time
    return rounds


def _number(path: Path) -> int | None:
    return whole_number(path.stem.removeprefix("iter-"), 1, 10**7)


def _read_report(path: Path) -> LoggedRound:
    content = read_json(path, LARGEST)
    if not isinstance(content, dict):
        raise InputError(path, "expects an object with num_iters, time, num_samples and total_time")
    steps = content.get("time")
    if not isinstance(steps, dict) or not steps:
        raise InputError(f"{path}: time", "expects the seconds of each phase, by local step")
    spent = dict.fromkeys(PHASES, 0.0)
    for step, phases in steps.items():
        if not isinstance(phases, dict):
            raise InputError(f"{path}: time.{step[:40]}", "expects the seconds of each phase")
        for phase, seconds in phases.items():
            place = f"{path}: time.{step[:40]}.{phase[:40]}"
            if phase not in spent:
                raise InputError(place, f"no such phase; the phases are {', '.join(PHASES)}")
            spent[phase] += _value(place, seconds)
    accuracy = content.get("accuracy")
    if accuracy is None and spent[EVALUATION]:
        accuracy = 0.0  # the original leaves it out
    samples = _value(f"{path}: num_samples", content.get("num_samples"))
    return LoggedRound(
        samples=int(samples),
        time=_value(f"{path}: total_time", content.get("total_time")),
        compute=sum(spent[phase] for phase in COMPUTING),
        evaluate=spent[EVALUATION],
        query=spent[QUERY],
        aggregate=sum(spent[phase] for phase in AGGREGATING),
        accuracy=None if accuracy is None else _share(f"{path}: accuracy", accuracy),
    )


def _check_order(where: object, rounds: list[LoggedRound]) -> None:
    if len(rounds) > 1 and rounds[-1].time < rounds[-2].time:
        raise InputError(
            where,
            f"the time goes back from {rounds[-2].time:g} to {rounds[-1].time:g} s: processes with the same folder "
            "overwrite each other's logs",
        )
    if rounds[-1].time <= 0:
        raise InputError(where, "the time since the start is 0: there is no rate")


def _value(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST:
        raise InputError(where, f"expects a number from 0, got {str(value)[:40]}")
    return float(value)


def _share(where: str, value: Any) -> float:
    if _value(where, value) > 1:
        raise InputError(where, f"expects an accuracy from 0 to 1, got {str(value)[:40]}")
    return float(value)


_SETTINGS: dict[str, dict[str, Any]] = {
    "esync": {"mode": "sync", "train.local_steps": "esync", "rule": "average"},
    "sync": {"mode": "sync", "train.local_steps": 1, "rule": "average"},
    "async": {"mode": "async", "train.local_steps": 1, "rule": "naive_async"},
    "dcasgd": {"mode": "async", "train.local_steps": 1, "rule": "dc_asgd"},
    "local": {"mode": "sync", "train.local_steps": 1, "rule": "average"},
}
"""The settings of hpcps that mean the same as a mode of the original."""


def table_of_logs(name: str, runs: Sequence[LoggedRun], model_bytes: float | None) -> pd.DataFrame:
    """Return the rows of some runs: `round`, `evaluation` and `totals` as in `hpcps collect`.

    The accuracies of a run are those of the device that has most of them. The bytes that a device sends are one model
    for each of its rounds.

    Args:
        name: the name of the experiment in the table.
        runs: the runs.
        model_bytes: the size of the model; None: the traffic is not known.
    """
    swept = ["mode", "train.local_steps", "rule", *(["model"] * (len({run.network for run in runs}) > 1)), "data.split"]
    return table_of_runs(name, "esync", [_imported(run, model_bytes) for run in runs], swept)


def evaluating_device(run: LoggedRun) -> str:
    """Return the device with the most accuracies; the first one of several."""
    return max(run.devices, key=lambda name: sum(each.accuracy is not None for each in run.devices[name]))


def _imported(run: LoggedRun, model_bytes: float | None) -> ImportedRun:
    workers = 0 if run.mode == "local" else len(run.devices)
    split = "by_class" if run.by_class else "iid"
    settings = {
        "servers": min(1, workers),
        "workers": workers,
        **({"model": run.network} if run.network else {}),
        "data.split": split,
        "epochs": 0,
        **_SETTINGS[run.mode],
    }
    label = " · ".join(filter(None, (run.network, run.mode, split)))
    return ImportedRun(label, settings, list(_rows(run, model_bytes)), dict(enumerate(run.devices)))


def _rows(run: LoggedRun, model_bytes: float | None) -> list[dict[str, Any]]:
    role = "validator" if run.mode == "local" else "worker"
    evaluating = evaluating_device(run)
    rows: list[dict[str, Any]] = []
    for index, (device, rounds) in enumerate(run.devices.items()):
        for number, each in enumerate(rounds):
            common = {"role": role, "index": index, "host": device.partition("/")[0], "source": device, "round": number}
            size = {} if model_bytes is None else {"bytes_sent": round(model_bytes)}
            rows.append(
                {"event": "round", **common, "time": each.time, "samples": each.samples, "compute": each.compute,
                 "evaluate": each.evaluate, "exchange": each.aggregate, "wait": each.query, **size}
            )  # fmt: skip
            if device == evaluating and each.accuracy is not None:
                rows.append(
                    {"event": "evaluation", **common, "time": each.time, "wall": each.time, "accuracy": each.accuracy,
                     "diverged": 0, "stalled": 0, "bytes_sent_total": np.nan}
                )  # fmt: skip
    return rows


MODES = ("esync", "sync", "async", "dcasgd", "local")

_BY_CLASS = "-niid"
_SUMMARY_BY_CLASS = "-non-iid"


@dataclass(frozen=True)
class LoggedRun:
    """A run of the original.

    Attributes:
        network: the name of the folder above that of the mode, such as `resnet18-v1`; empty if there is none.
        mode: one of `MODES`.
        by_class: whether the shards were cut by class.
        devices: the rounds of each device, by name.
        summary: whether the source is a summary, in which evaluations and queries count as computing.
    """

    network: str
    mode: str
    by_class: bool
    devices: Mapping[str, list[LoggedRound]]
    summary: bool = False


def read_logs(folder: Path, mode: str | None = None) -> list[LoggedRun]:
    """Read all runs of a folder, in the order of `MODES`.

    A folder on the way to the reports of a device is named after the mode (`esync`, `sync`, `async`, `dcasgd`, `local`;
    with `-niid` if shards are cut by class); those below it are the name of the device. A summary is named after the
    mode (`ESync.json`, `Sync-Non-IID.json`); it is only read for a run without reports.

    Args:
        folder: the folder; it may itself be that of a mode.
        mode: the mode of logs that no folder names.

    Raises:
        RunError: there are no logs, or the mode of some is unknown.
        InputError: a file is damaged.
    """
    if not folder.is_dir():
        raise RunError(f"no folder {folder}")
    found: dict[tuple[str, str, bool], LoggedRun] = {}
    devices: dict[tuple[str, str, bool], dict[str, list[LoggedRound]]] = {}
    for parent in sorted({path.parent for path in files_in(folder) if path.match("iter-*.txt")}):
        key, device = _place(folder, parent, mode)
        rounds = read_reports(parent)
        if rounds:
            devices.setdefault(key, {})[device] = rounds
    for key, own in devices.items():
        found[key] = LoggedRun(*key, own)
    for run in _summaries(folder):
        found.setdefault((run.network, run.mode, run.by_class), run)
    if not found:
        raise RunError(f"no logs in {folder}: expects <mode>/<device>/iter-1.txt, …, or summaries such as ESync.json")
    return sorted(found.values(), key=lambda run: (run.network, run.by_class, MODES.index(run.mode)))


def _place(folder: Path, parent: Path, given: str | None) -> tuple[tuple[str, str, bool], str]:
    """Return network, mode and split of a device's folder, and the name of the device."""
    parts = (folder.resolve().name, *parent.relative_to(folder).parts)
    for place in reversed(range(len(parts))):
        name = parts[place].lower()
        if name.removesuffix(_BY_CLASS) in MODES:
            network = parts[place - 1] if place > 1 else ""
            device = "/".join(parts[place + 1 :]) or parts[place]
            return (network, name.removesuffix(_BY_CLASS), name.endswith(_BY_CLASS)), device
    if given is None:
        raise RunError(f"no folder on the way to {parent} names its mode ({', '.join(MODES)}): give it with --mode")
    device = "/".join(parent.relative_to(folder).parts) or parent.name
    return ("", given.removesuffix(_BY_CLASS), given.endswith(_BY_CLASS)), device


def _summaries(folder: Path) -> Iterator[LoggedRun]:
    for path in sorted(path for path in files_in(folder) if path.suffix == ".json"):
        name = path.stem.lower()
        mode = name.removesuffix(_SUMMARY_BY_CLASS)
        if mode not in MODES or not path.is_file():
            continue
        content = read_json(path, LARGEST)
        if not isinstance(content, dict) or not all(isinstance(workers, dict) for workers in content.values()):
            raise InputError(path, "expects nodes, their workers, and lists of rounds for each worker")
        devices = {
            f"{node}/{worker}": parse_summary(f"{path}: {node[:40]}.{worker[:40]}", lists)
            for node, workers in content.items()
            for worker, lists in workers.items()
        }
        devices = {device: rounds for device, rounds in devices.items() if rounds}
        if not devices:
            raise InputError(path, "has no rounds")
        above = path.relative_to(folder).parts[:-1]
        if above and above[-1].lower().removesuffix(_BY_CLASS) in MODES:
            above = above[:-1]
        yield LoggedRun(above[-1] if above else "", mode, name.endswith(_SUMMARY_BY_CLASS), devices, summary=True)
