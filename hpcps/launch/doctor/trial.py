"""Starts two ranks on this machine with the launcher that `hpcps run` uses, in the form that it uses."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import hpcps
from hpcps.errors import InputError, LaunchError
from hpcps.inputs import MiB, read_json
from hpcps.launch.bounded import ask
from hpcps.launch.detect import Mpi
from hpcps.launch.gpu_mpi import with_gpu_mpi
from hpcps.launch.launchers import Job
from hpcps.launch.plan import Plan, Rank


def start_ranks(mpi: Mpi, seconds: float, mode: str = "") -> tuple[dict[str, Any], str]:
    """Start two ranks of `ranks`; return the result of rank 0, and what is wrong, empty if nothing is.

    Args:
        mpi: the launcher.
        seconds: the deadline.
        mode: see `ranks`.
    """
    plan = Plan((Rank(0, "worker", 0, "localhost"), Rank(1, "worker", 1, "localhost")), ())
    with tempfile.TemporaryDirectory(prefix="hpcps-doctor-") as name:
        folder = Path(name)
        result, program = folder / "result.json", folder / "rank"
        # The launcher starts this instead of the interpreter, so the file has the format of a real launch.
        command = shlex.join([sys.executable, "-m", "mpi4py", "-m", "hpcps.launch.doctor.ranks", str(result)])
        root = shlex.quote(str(Path(hpcps.__file__).parent.parent))
        path = f"PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"
        program.write_text(f"#!/bin/sh\n{path} exec {command} {mode}\n")
        program.chmod(0o700)
        try:
            job = Job(plan, folder / "plan.json", folder / "conf", mpi.mpirun, program, options=())
            launch = mpi.launcher.launch_of(with_gpu_mpi(job, mpi.launcher) if mode else job)
            launch.write()
        except LaunchError as error:
            return {}, str(error)
        answer = ask(launch.command, seconds, launch.environment())
        try:
            found = read_json(result, MiB)
        except InputError:
            return {}, f"{mpi.mpirun.name} {answer.problem or 'starts no ranks'}"
    if not isinstance(found, dict):
        return {}, f"{mpi.mpirun.name} {answer.problem or 'starts no ranks'}"
    if found.get("size") != 2:
        return found, (
            f"{mpi.mpirun} starts {found.get('size')} rank instead of 2: it belongs to another MPI than the library "
            f"that mpi4py loads ({found.get('library')})"
        )
    return found, f"{mpi.mpirun.name} {answer.problem}" if answer.problem else ""
