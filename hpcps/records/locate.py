"""From what a person types (`fig3`, a file, a folder) to an experiment's results and the points of its file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import RunError


@dataclass(frozen=True)
class Place:
    """Where an experiment is.

    Attributes:
        results: its folder, `results/<name>`; it need not exist.
        points: the points of its file, each as `spec.json` would hold it; none without a file.
    """

    results: Path
    points: tuple[dict[str, Any], ...] = ()


def locate(text: str, results: Path, experiments: Path) -> Place:
    """Find an experiment by its file, its results folder, its name or the beginning of its name.

    Args:
        text: what was typed.
        results: the folder of all results.
        experiments: the folder of all experiment files.

    Raises:
        RunError: nothing, or more than one thing, is meant by it; the message lists what there is.
        SpecError: its experiment file has mistakes.
    """
    path = Path(text)
    if path.suffix == ".toml":
        if not path.is_file():
            raise RunError(f"no experiment file {path}")
        name, points = _load(path)
        return Place(results / name, points)
    if (path / "runs").is_dir() or (path / "table.parquet").is_file():
        return _place(path, experiments)
    names = sorted({p.name for p in results.glob("*") if p.is_dir()} | {p.stem for p in experiments.glob("*.toml")})
    meant = [text] if text in names else [name for name in names if name.startswith(text)]
    if len(meant) == 1:
        file = experiments / f"{meant[0]}.toml"
        if file.is_file() and not (results / meant[0]).is_dir():
            # A file may give its experiment another name than its own.
            name, points = _load(file)
            return Place(results / name, points)
        return _place(results / meant[0], experiments)
    if meant:
        raise RunError(f"{text!r} may be any of {', '.join(meant)}: say more of the name")
    near = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(names) or "none"
    raise RunError(f"no experiment {text!r}: {hint}Those in {results}/ and {experiments}/ are: {known}")


def _place(results: Path, experiments: Path) -> Place:
    file = experiments / f"{results.name}.toml"
    return Place(results, _load(file)[1] if file.is_file() else ())


def _load(file: Path) -> tuple[str, tuple[dict[str, Any], ...]]:
    # Imported here: most of what this room does needs no schema.
    from hpcps.spec.load import load_experiment

    experiment = load_experiment(file)
    points = tuple(
        {
            "run_id": point.run_id,
            "label": point.label,
            "index": point.index,
            "swept": dict(point.swept),
            "run": point.run.model_dump(mode="json"),
        }
        for point in experiment.points
    )
    return experiment.name, points
