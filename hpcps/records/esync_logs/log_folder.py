"""Finds the runs in a folder of logs: their modes and the devices of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcps.errors import InputError, RunError
from hpcps.inputs import MiB, read_json
from hpcps.records.esync_logs.device_log import LoggedRound, parse_summary, read_reports

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
