"""The sweep that a launch belongs to, with all its points, finished or not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcps.errors import HpcpsError, InputError
from hpcps.inputs import printable, read_json, regular
from hpcps.records.files import write_whole, writing
from hpcps.records.locate import load_points
from hpcps.records.run_directory import SPEC, RunDirectory

Points = Sequence[Mapping[str, Any]]


def write_sweep(results: Path, file: Path, overrides: Sequence[str], points: Points) -> None:
    """Write `sweeps/<hash of the overrides>.json` with all points of a file, also those that do not run now.

    Args:
        results: the experiment's folder.
        file: the experiment file.
        overrides: the values of `--set`.
        points: the points, each in the form of `spec.json`.

    Raises:
        RunError: it cannot be written.
    """
    # Points of a large sweep have most of their content in common.
    first: Mapping[str, Any] = points[0] if points else {"run": {}}
    others = [_difference(point, first) | {"run": _difference(point["run"], first["run"])} for point in points]
    sweep = {"file": str(file.absolute()), "overrides": list(overrides), "common": first, "points": others}
    path = _path(results, overrides)
    text = json.dumps(sweep)
    with writing(path):
        if path.exists() and regular(path).read_bytes() == text.encode():
            return  # the jobs of an array write the same
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def planned(results: Path, points: Points = ()) -> dict[str, Mapping[str, Any]]:
    """Return the points of all sweeps of an experiment that have started, by run id.

    The current experiment file defines a sweep. If the file is missing or has mistakes, its version at the last launch
    does. A sweep without any remaining run is ignored.

    Args:
        results: the experiment's folder.
        points: the points of the experiment's file, if it is known.
    """
    sweeps: dict[tuple[str, ...], Points] = {}
    for path in sorted((results / "sweeps").glob("*.json")):
        if (sweep := read_sweep(path)) is not None:
            file, overrides, then = sweep
            now = points if not overrides else ()
            sweeps[overrides] = now or _now(results, file, overrides) or then
    if points and not sweeps:
        sweeps[()] = points
    begun = [sweep for sweep in sweeps.values() if any(_begun(results, point) for point in sweep)]
    return {str(point["run_id"]): point for sweep in begun for point in sweep}


def launched(results: Path, overrides: Sequence[str]) -> Points:
    """Return the points of the sweep with these values of `--set`, as its last launch wrote them; none without one.

    Args:
        results: the experiment's folder.
        overrides: the values of `--set`.
    """
    sweep = read_sweep(_path(results, overrides))
    return sweep[2] if sweep else ()


def launches(results: Path) -> list[Points]:
    """Return the points of each sweep of an experiment's folder, as its last launch wrote them."""
    sweeps = map(read_sweep, sorted((results / "sweeps").glob("*.json")))
    return [sweep[2] for sweep in sweeps if sweep is not None]


def belongs(run: RunDirectory, whole: Mapping[str, Any]) -> bool:
    """Tell whether to show a run's folder.

    A folder without records belongs to a point that has not started, or that was removed from the file. The sweeps that
    launches have written distinguish these cases.

    Args:
        run: the folder.
        whole: the result of `planned`.
    """
    if run.path.name in whole:
        return True
    known = (run.path.parent.parent / "sweeps").is_dir()
    begun = (run.path / "DONE").exists() or bool(run.records or run.failures)
    return begun or (bool(run.spec) and not known)


def _path(results: Path, overrides: Sequence[str]) -> Path:
    name = hashlib.sha256(json.dumps(sorted(overrides)).encode()).hexdigest()[:10]
    return results / "sweeps" / f"{name}.json"


def read_sweep(path: Path) -> tuple[Path, tuple[str, ...], Points] | None:
    """Return the file, the overrides and the points of a sweep; None if its file is missing or damaged."""
    with suppress(InputError):
        match read_json(path):
            case {"file": str(file), "overrides": [*overrides], "points": [*differences]} as sweep if all(
                isinstance(override, str) for override in overrides
            ):
                points: Any = [_whole(difference, sweep.get("common")) for difference in differences]
                if not all(map(_is_point, points)):
                    return None
                points = [{**point, "label": printable(point["label"])} for point in points]
                return Path(file), tuple(overrides), points
    return None


def _is_point(point: object) -> bool:
    match point:
        case {"run_id": str(run_id), "label": str(), "index": int(), "swept": dict(), "run": dict()}:
            return re.fullmatch(r"[0-9a-z]+", run_id) is not None
    return False


def _difference(table: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in other or other[key] != value}


def _whole(difference: object, common: object) -> object:
    """Complete a point with what all points of its sweep have in common."""
    match difference, common:
        case {"run": {**run}, **own}, {"run": {**rest}, **others}:
            return {**others, **own, "run": {**rest, **run}}
    return difference


def _now(results: Path, file: Path, overrides: Sequence[str]) -> Points:
    """Return the points that an experiment file makes now; none if it is missing, has mistakes or another name."""
    if file.is_file():
        with suppress(HpcpsError):
            found, now = load_points(file, overrides, results=results.parent)
            if found == results.name:
                return now
    return ()


def _begun(results: Path, point: Mapping[str, Any]) -> bool:
    folder = results / "runs" / str(point["run_id"])
    return any((folder / name).exists() for name in (SPEC, "DONE"))  # their contents may be damaged
