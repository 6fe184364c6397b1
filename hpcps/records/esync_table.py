"""The logs of the published ESync code, found in folders, as a table beside those of own runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import InputError, RunError
from hpcps.inputs import MiB, read_json
from hpcps.records.esync_log import LoggedRound, parse_summary, read_reports
from hpcps.records.table import stack, tabulate, with_settings
from hpcps.records.totals import sum_processes

IMPORTED = "imported"
"""The attribute of the table that names the system whose logs it has."""

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
    tables = []
    for run in runs:
        table = tabulate(_rows(run, model_bytes))
        totals = sum_processes(table)
        tables.append(stack([table, totals.assign(source=totals["index"].map(dict(enumerate(run.devices))))]))
    swept = ["mode", "train.local_steps", "rule", *(["model"] * (len({run.network for run in runs}) > 1)), "data.split"]
    frame = with_settings(tables, [_facts(name, point, run) for point, run in enumerate(runs)])
    frame.attrs.update({"experiment": name, "swept": swept, "outside": {}, IMPORTED: "esync"})
    return frame


def evaluating_device(run: LoggedRun) -> str:
    """Return the device with the most accuracies; the first one of several."""
    return max(run.devices, key=lambda name: sum(each.accuracy is not None for each in run.devices[name]))


def _facts(name: str, point: int, run: LoggedRun) -> dict[str, Any]:
    workers = 0 if run.mode == "local" else len(run.devices)
    split = "by_class" if run.by_class else "iid"
    key = f"{name}/{run.network}/{run.mode}/{split}"
    return {
        "run_id": hashlib.sha256(key.encode(errors="replace")).hexdigest()[:10],
        "label": f"{run.mode} · {split}",
        "point": point,
        "status": "done",
        "experiment": name,
        "seed": 0,
        "fidelity": "original",
        "servers": min(1, workers),
        "validators": 0,
        "workers": workers,
        **({"model": run.network} if run.network else {}),
        "data.split": split,
        "epochs": 0,
        **_SETTINGS[run.mode],
        "scores": False,
        "outside": "",
        "variant": "",
    }


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
_LARGEST = 256 * MiB


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
    for parent in sorted({path.parent for path in folder.rglob("iter-*.txt") if path.is_file()}):
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
    for path in sorted(folder.rglob("*.json")):
        name = path.stem.lower()
        mode = name.removesuffix(_SUMMARY_BY_CLASS)
        if mode not in MODES or not path.is_file():
            continue
        content = read_json(path, _LARGEST)
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
