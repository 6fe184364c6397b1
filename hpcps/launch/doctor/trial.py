"""Starts two ranks that exchange messages, with the launcher that `hpcps run` uses, in the form that it uses."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hpcps
from hpcps.errors import InputError, LaunchError
from hpcps.inputs import MiB, read_json
from hpcps.launch.bounded import ask
from hpcps.launch.detect import Mpi
from hpcps.launch.gpu_mpi import with_gpu_mpi
from hpcps.launch.launchers import Job, Launcher
from hpcps.launch.plan import Plan, Rank


def start_ranks(mpi: Mpi, seconds: float, mode: str = "") -> tuple[dict[str, Any], str]:
    """Start two ranks of `ranks` on this machine; see `start_pair`.

    Args:
        mpi: the launcher.
        seconds: the deadline.
        mode: see `ranks`.
    """
    plan = Plan((Rank(0, "worker", 0, "localhost"), Rank(1, "worker", 1, "localhost")), ())
    with tempfile.TemporaryDirectory(prefix="hpcps-doctor-") as name:
        folder = Path(name)
        job = Job(plan, folder / "plan.json", folder / "conf", mpi.mpirun, Path(sys.executable), options=())
        job = with_gpu_mpi(job, mpi.launcher) if mode else job
        return start_pair(job, mpi.launcher, folder / "trial", seconds, mode)


def start_pair(job: Job, launcher: Launcher, folder: Path, seconds: float, mode: str) -> tuple[dict[str, Any], str]:
    """Start two ranks of `ranks`; return the result of rank 0, and what is wrong, empty if nothing is.

    Args:
        job: its world is two ranks, which run `ranks` instead of its program.
        launcher: starts it.
        folder: for the files; this makes and removes it, and all hosts of the job must be able to read it.
        seconds: the deadline.
        mode: see `ranks`.
    """
    try:
        folder.mkdir(parents=True)
        return _start(job, launcher, folder, seconds, mode)
    except LaunchError as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"{folder} cannot be written: {error.strerror}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(job: Job, launcher: Launcher, folder: Path, seconds: float, mode: str) -> tuple[dict[str, Any], str]:
    mpirun, result, program = job.mpirun, folder / "result.json", folder / "rank"
    # The launcher starts this instead of the interpreter, so the file has the format of a real launch.
    words = [str(job.python), "-m", "mpi4py", "-m", "hpcps.launch.doctor.ranks", str(result), str(int(seconds)), mode]
    root = shlex.quote(str(Path(hpcps.__file__).parent.parent))
    path = f"PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"
    program.write_text(f"#!/bin/sh\n{path} exec {shlex.join(words)}\n")
    program.chmod(0o700)
    job = replace(job, plan_file=folder / "plan.json", configfile=folder / "conf", python=program)
    launch = launcher.launch_of(job)
    launch.write()
    answer = ask(launch.command, seconds, launch.environment())
    try:
        found = read_json(result, MiB)
    except InputError:
        return {}, f"{mpirun.name} {answer.problem or 'starts no ranks'}"
    if not isinstance(found, dict):
        return {}, f"{mpirun.name} {answer.problem or 'starts no ranks'}"
    if found.get("size") != 2:
        return found, (
            f"{mpirun} starts {found.get('size')} rank instead of 2: it belongs to another MPI than the library "
            f"that mpi4py loads ({found.get('library')})"
        )
    return found, f"{mpirun.name} {answer.problem}" if answer.problem else ""
