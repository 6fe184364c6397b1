"""Compares the needs of an experiment with this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcps.errors import HpcpsError
from hpcps.launch.batch import SITE_GPUS
from hpcps.launch.dev_shm import Space, shortage
from hpcps.launch.doctor.diagnosis import Diagnosis
from hpcps.launch.mps import CLIENTS
from hpcps.launch.placement import gpu_assignment, most_on_a_host, place
from hpcps.records.run_directory import FREE_SPACE_NEEDED
from hpcps.spec.point import Point
from hpcps.spec.schema import Run
from hpcps.training.build import find_framework
from hpcps.training.trial import try_components, try_data


@dataclass(frozen=True)
class NeedsCheck:
    """The needs of an experiment that matter on this machine.

    Attributes:
        unmet: the needs without which a run fails here, each with its key.
        notes: what makes runs slower here.
        gpus: which process gets which GPU, by host; empty if no GPU is known.
    """

    unmet: tuple[str, ...]
    notes: tuple[str, ...]
    gpus: tuple[str, ...] = ()


def needs_of(points: Sequence[Point], machine: Diagnosis, results: Path) -> NeedsCheck:
    """Compare the points of an experiment with this machine.

    Args:
        points: the points to run.
        machine: the result of the diagnosis.
        results: the folder of all results.
    """
    unmet: list[str] = []
    notes: list[str] = []
    for point in points:
        unmet += _unmet(point.run, machine)
        notes += _notes(point.run, machine)
    for run in {point.run.data.model_dump_json(): point.run for point in points}.values():
        unmet += _refusal(f'data.name = "{run.data.name}"', try_data, run)
    unmet += _refusal("components", try_components, [point.run for point in points])
    unmet += _results(results)
    gpus = gpu_assignment((point.run for point in points), machine.batch.hosts)
    if not gpus:
        notes += [note for point in points if (note := _all_on_one_gpu(point.run, machine))]
    return NeedsCheck(tuple(dict.fromkeys(unmet)), tuple(dict.fromkeys(notes)), tuple(gpus))


def _unmet(run: Run, machine: Diagnosis) -> list[str]:
    found = _refusal(f'model.backend = "{run.model.backend}"', find_framework, run.model.backend)
    transport = run.transport
    missing = [transport.missing(), "" if machine.mpi.works or "mpi" not in transport.offers else machine.mpi.problem]
    found += [f'transport.kind = "{transport.kind}": {what}' for what in missing if what]
    if run.train.device == "cuda":
        found += [f'train.device = "cuda": {why}' for why in _without_cuda(run, machine)]
    if "mpi" in transport.offers and machine.mpi.works and machine.memory.get("shm"):
        there = Space(**machine.memory["shm"])
        short = shortage(most_on_a_host(run, machine.batch.hosts), there, machine.mpi.shm)
        found += [f'transport.kind = "{transport.kind}": {short}'] if short else []
    if transport.buffers == "direct" and machine.buffers["direct"]:
        found.append(f'transport.device_buffers = "direct": {machine.buffers["direct"]}')
    if not transport.in_process and machine.batch.hosts:
        placed = partial(place, adversary=run.has_adversary)
        found += _refusal("topology", placed, run.topology, machine.batch.hosts, Path(f"job {machine.batch.job}"))
    return found


def _all_on_one_gpu(run: Run, machine: Diagnosis) -> str:
    """Return a note if the processes of a host all use the first of its GPUs, because nobody names the others."""
    found = machine.gpus.get("found") or []
    if len(found) < 2 or run.train.device == "cpu" or run.transport.in_process:
        return ""
    return (
        f"all processes of a host use the first of its {len(found)} GPUs: name the others with {SITE_GPUS}="
        f"{','.join(map(str, range(len(found))))}, or with gpus= in a host file"
    )


def _without_cuda(run: Run, machine: Diagnosis) -> list[str]:
    """Return why a run cannot train on a GPU here; nothing if it can, or if only its start can tell."""
    if not machine.gpus.get("found"):
        return [str(machine.gpus.get("problem") or "there is no GPU")]
    cuda = machine.software.get("cuda") or {}
    if run.model.backend == "torch" and cuda and not cuda.get("available"):
        built = f"built for CUDA {cuda['built']}" if cuda.get("built") else "a build for CPUs"
        return [f"torch {machine.software.get('torch')} is {built}, and sees no GPU"]
    return []


def _notes(run: Run, machine: Diagnosis) -> list[str]:
    if run.transport.in_process:
        return []
    topology, notes = run.topology, []
    processes = run.processes
    if len(machine.batch.hosts) < 2 and processes * run.train.threads > machine.cores.usable:
        each = f" with {run.train.threads} threads each" if run.train.threads > 1 else ""
        notes.append(f"{processes} processes{each} share {machine.cores.usable:g} cores")
    if run.transport.reads_in_place and not machine.memory.get("in_place"):
        notes.append("processes cannot read each other's memory: updates and models are sent")
    if not machine.kernels.get("numba"):
        notes.append("numba is not installed: rules run without compiled kernels: pip install 'hpcps[kernels]'")
    trainers, gpus = topology.validators + topology.workers + topology.evaluators, machine.gpus.get("found") or []
    if gpus and run.train.device != "cpu" and trainers > len(gpus):
        if not machine.mps.get("usable"):
            notes.append(f"{trainers} processes share {len(gpus)} GPUs without MPS: {machine.mps.get('why')}")
        elif trainers > CLIENTS * len(gpus):
            notes.append(f"{trainers} processes share {len(gpus)} GPUs without MPS, which supports {CLIENTS} on each")
    return notes


def _refusal(key: str, check: Callable[..., object], *arguments: object) -> list[str]:
    try:
        check(*arguments)
    except HpcpsError as error:
        return [f"{key}: {error}"]
    return []


def _results(results: Path) -> list[str]:
    """Return why no results can be written; create nothing."""
    folder = results.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return [f"results: {there} cannot be written: choose another results folder with --results"]
    free = shutil.disk_usage(there).free
    if free < FREE_SPACE_NEEDED:
        return [
            f"results: the disk of {there} has {free / 2**20:.0f} MiB free, {FREE_SPACE_NEEDED // 2**20} are needed"
        ]
    return []
