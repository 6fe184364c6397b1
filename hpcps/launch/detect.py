"""Detect the launcher on this machine."""

from __future__ import annotations

import os
import shutil
import sys
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


TIMEOUT = 60.0
"""Seconds for a launcher to answer."""


def detect_mpi(mpirun: Path | None = None, timeout: float = TIMEOUT) -> Mpi:
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
    text = _version(found, timeout)
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
    own = Path(sys.executable).parent / "mpirun"
    if os.access(own, os.X_OK):
        return own
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


def find_launcher(name: str, image: str | None = None) -> Launcher:
    """Return the launcher of this name.

    Args:
        name: its name.
        image: the container image of its processes; None: that of the launcher, if it has one.

    Raises:
        LaunchError: no launcher has this name.
        SpecError: it is in a package that cannot be imported.
    """
    launchers = active().of("launchers")
    if name not in launchers:
        raise LaunchError(f"unknown dialect {name!r}: choose one of {', '.join(launchers)}")
    if image is not None and "image" not in launchers[name].model_fields:
        raise LaunchError(f"--image: {name} starts no containers: leave it out, or give --dialect kubernetes")
    launcher: Launcher = launchers[name](**({} if image is None else {"image": image}))
    return launcher


def _version(mpirun: Path, timeout: float) -> str:
    # Intel's mpirun is a script that finds its helpers on PATH.
    path = os.pathsep.join([str(mpirun.parent), os.environ.get("PATH", os.defpath)])
    answer = ask([mpirun, "--version"], timeout, {**os.environ, "PATH": path})
    if answer.expired or not (answer.output or answer.errors):
        why = answer.problem.removeprefix("does not answer ") or "it prints nothing"
        raise LaunchError(f"{mpirun} --version does not answer: {why}; use --mpirun to name another one")
    return answer.output + answer.errors
