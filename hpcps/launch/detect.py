"""Detect the launcher on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.launch.bounded import ask
from hpcps.launch.launchers import Launcher
from hpcps.registry import active


@dataclass(frozen=True)
class Mpi:
    """A launcher that is installed on this machine.

    Attributes:
        launcher: the launcher.
        mpirun: the path of its executable.
    """

    launcher: Launcher
    mpirun: Path


PATIENCE = 60.0
"""Seconds for a launcher to answer."""


def detect_mpi(mpirun: Path | None = None, patience: float = PATIENCE) -> Mpi:
    """Find the launcher: the given one (a path, or a name on PATH), the one beside this interpreter, or that on PATH.

    The executable beside the interpreter comes before PATH, because it belongs to the library that mpi4py loads there,
    even if the environment is not activated. On PATH, `mpirun` comes first, then the executables of other launchers.
    The launcher is the one that recognises the output of `--version`; plugins are asked before built-in launchers.

    Raises:
        LaunchError: there is no executable, or no launcher recognises it.
    """
    found = _resolve(mpirun) if mpirun else find_mpirun()
    if found is None:
        raise LaunchError(
            "no mpirun, neither beside this Python nor on PATH: load your site's MPI module, or install one here with "
            f"`{sys.executable} -m pip install mpich`"
        )
    text = _version(found, patience)
    for launcher in reversed(known_launchers()):
        if launcher.recognises(found, text):
            return Mpi(launcher, found)
    printed = text.strip().splitlines()[0] if text.strip() else "nothing"
    raise LaunchError(
        f"{found} is none of {', '.join(each.name for each in known_launchers() if each.version)}: `--version` says "
        f"{printed!r}; put another one first on PATH, write the file for a known one with configgen's --dialect, or "
        "add this one with a plugin"
    )


def find_mpirun() -> Path | None:
    """Return the launcher beside this interpreter, else the first on PATH."""
    beside = Path(sys.executable).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return beside
    # `mpirun` first: if PATH has the `mpiexec` of another MPI as well, `mpirun` belongs to the MPI in use.
    for name in dict.fromkeys(["mpirun", *(launcher.executable for launcher in known_launchers())]):
        if on_path := shutil.which(name):
            return Path(os.path.abspath(on_path))
    return None


def _resolve(mpirun: Path) -> Path:
    """Find a launcher given by its bare name on PATH; return an absolute path."""
    on_path = shutil.which(mpirun) if mpirun.name == str(mpirun) else None
    return Path(os.path.abspath(on_path or mpirun))


def known_launchers() -> list[Launcher]:
    """Return the available launchers: built in, from installed packages, and from the experiment's plugins."""
    return [launcher() for launcher in active().of("launchers").usable().values()]


def find_launcher(name: str) -> Launcher:
    """Return the launcher of this name.

    Raises:
        LaunchError: no launcher has this name.
        SpecError: it is in a package that cannot be imported.
    """
    launchers = active().of("launchers")
    if name not in launchers:
        raise LaunchError(f"unknown dialect {name!r}: choose one of {', '.join(launchers)}")
    launcher: Launcher = launchers[name]()
    return launcher


def remote_agent(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the program that starts commands on other hosts of a batch job for launchers that cannot, else None.

    The MPICH wheel does not support PBS, and compute nodes often refuse ssh; `pbs_tmrsh` starts commands through PBS.
    """
    if "PBS_NODEFILE" not in environment:
        return None
    places = [Path(environment.get("PBS_EXEC", "/opt/pbs")) / "bin" / "pbs_tmrsh", shutil.which("pbs_tmrsh")]
    if not any(place and os.access(place, os.X_OK) for place in places):
        return None
    return Path(__file__).parent / "pbs_agent.sh"


def _version(mpirun: Path, patience: float) -> str:
    # Intel's mpirun is a script that finds its helpers on PATH.
    path = os.pathsep.join([str(mpirun.parent), os.environ.get("PATH", os.defpath)])
    answer = ask([mpirun, "--version"], patience, {**os.environ, "PATH": path})
    if answer.expired or not (answer.output or answer.errors):
        why = answer.problem.removeprefix("does not answer ") or "it prints nothing"
        raise LaunchError(f"{mpirun} --version does not answer: {why}; use --mpirun to name another one")
    return answer.output + answer.errors
