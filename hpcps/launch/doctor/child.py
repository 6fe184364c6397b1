"""`python -m hpcps.launch.doctor.child PROBE...`: run probes one after another; print each result as a JSON line.

The probes load libraries and drivers, which may hang or crash: the printed lines show which of them have ended.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hpcps.errors import text_of

_TRIAL = 2**20


def mpi() -> dict[str, Any]:
    """Load the MPI library that mpi4py finds, without starting MPI."""
    import mpi4py

    mpi4py.rc.initialize = False
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        return {"problem": str(error).removeprefix("cannot load MPI library\n").partition("\n")[0]}
    return {"mpi4py": mpi4py.__version__, "library": library_version(), "path": library_path()}


def library_version() -> str:
    """Return the name and version of the MPI library."""
    from mpi4py import MPI

    # Open MPI's text ends with a null byte and continues with the build, MPICH's with the options of the build.
    first: str = MPI.Get_library_version().strip("\0").splitlines()[0]
    return " ".join(first.split(", package")[0].split())


def library_path() -> str:
    """Return the file of the loaded MPI library; empty if it is not known."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.partition("/")[2]
            if path.rpartition("/")[2].startswith(("libmpi.so", "libmpich.so", "libmpi_cray.so")):
                return f"/{path}"
    return ""


def gpus() -> dict[str, Any]:
    """List the GPUs of this machine."""
    from hpcps.launch.local_rank import DRIVER
    from hpcps.records.provenance import gpus

    return {"driver": os.path.exists(DRIVER), "found": gpus()}


def mps() -> dict[str, Any]:
    """Find out whether CUDA can use MPS on the first visible GPU; start a daemon for the trial if none runs."""
    from hpcps.launch.local_rank import DRIVER
    from hpcps.launch.mps import CONTROL, start, stop

    if not os.path.exists(DRIVER):
        return {"usable": False, "why": "there is no NVIDIA driver"}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    with tempfile.TemporaryDirectory(prefix="hpcps-mps-") as folder:
        try:
            _, why = start(Path(folder), [visible], os.environ, 20.0)
        finally:
            stop(Path(folder))
    return {"usable": not why, "why": why, "control": shutil.which(CONTROL)}


def memory() -> dict[str, Any]:
    """Find out whether two processes can read each other's memory, and the size of /dev/shm, which MPI uses."""
    from hpcps.launch.dev_shm import FOLDER, space
    from hpcps.transport.shared_memory.neighbours import CARD_BYTES, Neighbours

    mine, (cards, card), (end, open_end) = Neighbours(), os.pipe(), os.pipe()
    child = os.fork()
    if not child:  # a second process, whose memory this one reads; it ends with this one
        try:
            os.close(open_end)
            theirs = Neighbours()
            os.write(card, theirs.card())
            os.read(end, 1)
        finally:
            os._exit(0)
    os.close(card)
    reached = mine.reach([mine.card(), os.read(cards, CARD_BYTES)], 0)[1]
    os.close(open_end)
    os.waitpid(child, 0)
    mine.arena.allocate(_TRIAL)
    found: dict[str, Any] = {"in_place": reached, "shortage": mine.arena.shortage, "shm": None, "shm_problem": ""}
    try:
        found["shm"] = (there := space()) and asdict(there)
        with tempfile.TemporaryFile(dir=FOLDER) as file:
            os.posix_fallocate(file.fileno(), 0, _TRIAL)
    except OSError as error:
        found["shm_problem"] = str(error.strerror)
    return found


def kernels() -> dict[str, Any]:
    """Find out whether the compiled kernels load; compile nothing."""
    from hpcps.numerics import kernels

    if not kernels.installed():
        return {"numba": None, "cached": False, "problem": "", "folder": None}
    found: dict[str, Any] = {"numba": _version("numba"), "cached": False, "problem": "", "folder": None}
    try:
        from hpcps.numerics.kernels import compiled, loading
    except ImportError as error:
        return {**found, "problem": str(error)}
    found["folder"] = compiled.CACHE and str(compiled.CACHE)
    # numba keeps the files in a folder of its own in there.
    found["cached"] = compiled.CACHE is not None and any(compiled.CACHE.rglob("*.nbc"))
    if found["cached"]:
        found["cached"] = loading.load() == 0
    return found


def software() -> dict[str, Any]:
    """Return the versions of the packages that hpcps uses, None for one that is not installed."""
    found: dict[str, Any] = {name: _version(name) for name in ("numpy", "torch", "mxnet", "pyzmq", "scikit-learn")}
    if found["torch"]:
        import torch

        found["cuda"] = {"built": torch.version.cuda, "available": torch.cuda.is_available()}
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


PROBES: Mapping[str, Callable[[], dict[str, Any]]] = {
    # Memory first: it forks, which is safe before libraries start threads.
    probe.__name__: probe
    for probe in (memory, mpi, gpus, mps, kernels, software)
}


def main(names: Sequence[str]) -> None:
    """Run probes; an exception becomes the problem of its probe."""
    # Libraries may print to standard output: the results have their own descriptor.
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with results:
        for name in names:
            try:
                found = PROBES[name]()
            except Exception as error:  # the error of a library can be of any class
                found = {"problem": f"the probe failed: {' '.join(text_of(error).split())[:300]}"}
            print(json.dumps({name: found}), file=results, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
