"""Which MPI is here, and which dialect its launcher speaks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcps.errors import LaunchError

_PATTERNS = {
    "intel": r"Intel\(R\) MPI Library.*?Version\s+([\w. ]*\w)",
    "openmpi": r"mpirun \(Open ?MPI\)\s+([\w.]+)",
    "hydra": r"HYDRA build details:\s+Version:\s+([\w.]+)",
    "slurm": r"^slurm(?:-wlm)? ([\w.-]+)",
    "pals": r"\bPALS\b\D*([\w.]+)",
}
# In this order; `mpirun` first: where there is another `mpiexec` beside it, `mpirun` belongs to the MPI in use.
_NAMES = ("mpirun", "mpiexec", "srun")


@dataclass(frozen=True)
class Mpi:
    """A launcher.

    Attributes:
        dialect: what its configfiles are written in.
        version: what it says of itself.
        mpirun: its path.
    """

    dialect: str
    version: str
    mpirun: Path


def detect_mpi(mpirun: Path | None = None) -> Mpi:
    """Find the launcher: the one given (a path, or a name on PATH), the one beside this interpreter, or that on PATH.

    Beside the interpreter comes first: it belongs to the library that mpi4py loads there, also where the environment is
    not activated. On PATH that is `mpirun`, else `mpiexec`, else `srun`.

    Raises:
        LaunchError: there is none, or it is none that a configfile can be written for.
    """
    found = _resolve(mpirun) if mpirun else find_mpirun()
    if found is None:
        raise LaunchError(
            "no mpirun, neither beside this Python nor on PATH: load your site's MPI module, or install one here with "
            f"`{sys.executable} -m pip install mpich`"
        )
    text = _version(found)
    if "pals" in found.resolve().parts:
        # /opt/cray/pals/<version>/bin/mpiexec, of which `mpirun` is another name
        text = f"PALS {text}"
    for dialect, pattern in _PATTERNS.items():
        if match := re.search(pattern, text, re.DOTALL):
            return Mpi(dialect, match[1], found)
    said = text.strip().splitlines()[0] if text.strip() else "nothing"
    raise LaunchError(
        f"{found} is none of MPICH (Hydra), Intel MPI, Open MPI, PALS and Slurm's srun: `--version` says {said!r}; put "
        "another one first on PATH, or write the file for a known one with configgen's --dialect"
    )


def find_mpirun() -> Path | None:
    """Return the launcher beside this interpreter, else the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return beside
    for name in _NAMES:
        if on_path := shutil.which(name):
            return Path(os.path.abspath(on_path))
    return None


def _resolve(mpirun: Path) -> Path:
    """Find a launcher given by its bare name on PATH; leave a path as it is."""
    on_path = shutil.which(mpirun) if mpirun.name == str(mpirun) else None
    return Path(os.path.abspath(on_path)) if on_path else mpirun


def remote_agent(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return what starts programs on the other hosts of a batch job where the launcher itself cannot, else None.

    The MPICH wheel cannot talk to PBS, and compute nodes often refuse ssh; `pbs_tmrsh` asks PBS.
    """
    if "PBS_NODEFILE" not in environment:
        return None
    places = [Path(environment.get("PBS_EXEC", "/opt/pbs")) / "bin" / "pbs_tmrsh", shutil.which("pbs_tmrsh")]
    if not any(place and os.access(place, os.X_OK) for place in places):
        return None
    return Path(__file__).parent / "pbs_agent.sh"


def _version(mpirun: Path) -> str:
    # Intel's script looks for its helpers on PATH.
    path = os.pathsep.join([str(mpirun.parent), os.environ.get("PATH", os.defpath)])
    try:
        asked = subprocess.run(
            [mpirun, "--version"],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": path},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else "not within a minute"
        raise LaunchError(f"{mpirun} --version does not answer: {why}; --mpirun says which one to use") from error
    return asked.stdout + asked.stderr
