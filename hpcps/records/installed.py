"""The installed packages that a run may execute: hpcps, and those that define components."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import hpcps
from hpcps.registry.kinds import KINDS

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
        for point in entry_points(group=f"hpcps.{kind}"):
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
