"""The programs whose processes are killed: runs of hpcps over ps-lite and over MPI, and torchft."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from exchanges import PEERS, make
from processes import ROOT
from survival_runs import STEP, WORKERS, Program

from hpcps.records.files import read_lines
from hpcps.records.goodput import goodput
from hpcps.records.run_directory import RunDirectory

EXPERIMENT = f"""
name = "survival"
[model]
name = "cnn"
[data]
name = "digits"
resize = 64
[train]
epochs = 100_000
batch_size = 8
local_steps = 1
[[heterogeneity.classes]]
name = "timed"
workers = {WORKERS}
seconds = {STEP}
[topology]
workers = {WORKERS}
"""
ROLES = ("worker", "validator", "server")
CHECKPOINT_ROUNDS = 8
"""Rounds between two checkpoints of a run that is restarted."""
LIMIT = ("no standby is there to take its place", "before its standby had its state")
"""What a run says whose server is lost while no process has its state, which is a stated limit."""


def hpcps_run(
    transport: str,
    survive: Iterable[str] = (),
    others: int = 1,
    options: Iterable[str] = (),
    more: str = "",
    killed: Iterable[str] = (),
) -> Program:
    """Return a run of hpcps.

    Args:
        transport: `transport.kind`.
        survive: the kinds of roles whose loss it survives.
        others: the number of validators, and of servers.
        options: more arguments of `hpcps run`.
        more: more of the file.
        killed: the roles of which processes are killed; by default, those whose loss it survives, or `ROLES`.
    """
    survived = tuple(survive)
    roles = frozenset(killed or survived or ROLES)
    keys = "".join(f"{role}s = true\n" for role in survived)
    text = f'{EXPERIMENT}validators = {others}\nservers = {others}\n[transport]\nkind = "{transport}"\n{more}'
    if survived:
        text += f"[survive]\n{keys}"
    return Program(
        partial(_hpcps_words, text, tuple(options)),
        "survival/runs/*/records/server-0.jsonl",
        partial(_hpcps_role, roles, "server" in survived and "server" in roles),
        _updates,
        _again,
        lambda said: any(each in said for each in LIMIT),
    )


def _hpcps_words(text: str, options: tuple[str, ...], folder: Path) -> list[str]:
    file = folder / "survival.toml"
    file.write_text(text)
    return [sys.executable, "-m", "hpcps", "run", str(file), "--results", str(folder), *options]


def _hpcps_role(roles: frozenset[str], standbys: bool, words: list[str], folder: Path, pid: int) -> str | None:
    """Return the role of a process that is to be killed; that of a server and of its standby changes."""
    role = words[-1] if "hpcps.execution" in words else ""
    if standbys and role in ("server", "standby"):
        starts = [line for record in folder.glob("survival/runs/*/records/server-*.jsonl") for line in _seats(record)]
        return "server" if pid in starts else "standby"
    return role if role in roles else None


def _seats(record: Path) -> list[int]:
    """Return the process that is the server now."""
    seats = [line["pid"] for line in read_lines(record).lines if line.get("event") in ("start", "took_over")]
    return seats[-1:]


def _run(folder: Path) -> RunDirectory:
    (path,) = folder.glob("survival/runs/*")
    return RunDirectory(path)


def _updates(folder: Path) -> Mapping[int, int]:
    run = _run(folder)
    found = goodput(run)
    if found is None:  # rounds wait for all workers
        return {}
    lines, _ = read_lines(run.path / "records/server-0.jsonl").valid()
    rounds = [int(line["round"]) for line in lines if line.get("event") == "round"]
    return dict(zip(rounds, np.diff(found.updates, prepend=0).tolist(), strict=True))


def _again(folder: Path) -> int:
    """Return the most rounds that a server has computed again, after a restart or without one."""
    records = _run(folder).path.glob("records/server-*.jsonl")
    return max(
        _repeated(line for line in read_lines(record).lines if line.get("event") == "round") for record in records
    )


def _repeated(lines: Iterable[Mapping[str, Any]]) -> int:
    highest, again = -1, 0
    for line in lines:
        again += int(line["round"]) <= highest
        highest = max(highest, int(line["round"]))
    return again


def torchft() -> Program:
    """Return torchft's DistributedDataParallel with a replica for each worker.

    Raises:
        NotHereError: its environment cannot be created on this machine.
    """
    make(".venv-torchft")
    return Program(_torchft_words, "rounds.jsonl", _torchft_role, _torchft_updates, _torchft_again)


def _torchft_words(folder: Path) -> list[str]:
    python = ROOT / ".venv-torchft/bin/python"
    return [str(python), str(PEERS / "torchft_replicas.py"), str(folder), str(WORKERS), str(STEP)]


def _torchft_role(words: list[str], folder: Path, pid: int) -> str | None:
    return "worker" if words[-1:] == ["replica"] else None


def _torchft_updates(folder: Path) -> Mapping[int, int]:
    return {int(line["round"]): int(line["updates"]) for line in read_lines(folder / "rounds.jsonl").lines}


def _torchft_again(folder: Path) -> int:
    return _repeated(read_lines(folder / "rounds.jsonl").lines)
