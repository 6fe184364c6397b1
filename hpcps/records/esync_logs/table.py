"""The table of logged runs, with the columns of `hpcps collect` that figures of methods need."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcps.records.esync_logs.log_folder import LoggedRun
from hpcps.records.table import constant, stack, tabulate, to_frame
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
    for point, run in enumerate(runs):
        rows = _rows(run, model_bytes)
        table = tabulate(rows)
        totals = sum_processes(table)
        devices = dict(enumerate(run.devices))
        totals = totals.append_column("device", [[devices[index] for index in totals["index"].to_pylist()]])
        table = stack([table, totals])
        for key, value in reversed(_facts(name, point, run).items()):
            table = table.add_column(0, key, constant(value, table.num_rows))
        tables.append(table)
    swept = ["mode", "train.local_steps", "rule", *(["model"] * (len({run.network for run in runs}) > 1)), "data.split"]
    return to_frame(stack(tables), {"experiment": name, "swept": swept, "outside": {}, IMPORTED: "esync"})


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
            common = {"role": role, "index": index, "host": device.partition("/")[0], "device": device, "round": number}
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
