"""From what a person types (a name, a file, a folder) to an experiment's results and the points of its file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import RunError


@dataclass(frozen=True)
class ExperimentLocation:
    """The location of an experiment.

    Attributes:
        results: its folder, `results/<name>`; it need not exist.
        points: the points of its file, each in the form of `spec.json`; none without a file or if it names plugins.
    """

    results: Path
    points: tuple[dict[str, Any], ...] = ()


def locate(text: str, results: Path, experiments: Path) -> ExperimentLocation:
    """Find an experiment by its file, its results folder, its name or a prefix of its name.

    Args:
        text: the user's text.
        results: the folder of all results.
        experiments: the folder of all experiment files.

    Raises:
        RunError: no experiment or several match; the message lists the experiments.
        SpecError: its experiment file has mistakes.
    """
    path = Path(text)
    if path.suffix == ".toml":
        if not path.is_file():
            raise RunError(f"no experiment file {path}")
        name, points = load_points(path)
        return ExperimentLocation(results / name, points)
    if (path / "runs").is_dir() or (path / "table.parquet").is_file():
        return _place(path, experiments)
    names = sorted({p.name for p in results.glob("*") if p.is_dir()} | {p.stem for p in experiments.glob("*.toml")})
    meant = [text] if text in names else [name for name in names if name.startswith(text)]
    if len(meant) == 1:
        file = experiments / f"{meant[0]}.toml"
        if file.is_file() and not (results / meant[0]).is_dir():
            # The name of an experiment may differ from that of its file.
            name, points = load_points(file)
            return ExperimentLocation(results / name, points)
        return _place(results / meant[0], experiments)
    if meant:
        raise RunError(f"{text!r} matches {', '.join(meant)}: type more of the name")
    near = difflib.get_close_matches(text, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(names) or "none"
    raise RunError(f"no experiment {text!r}: {hint}The experiments in {results}/ and {experiments}/ are: {known}")


def _place(results: Path, experiments: Path) -> ExperimentLocation:
    file = experiments / f"{results.name}.toml"
    return ExperimentLocation(results, load_points(file)[1] if file.is_file() else ())


def load_points(file: Path, overrides: Sequence[str] = ()) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return an experiment's name and the points of its file, each in the form of `spec.json`.

    Raises:
        SpecError: the file has mistakes.
    """
    # Imported here because most of this package does not need the schema.
    from hpcps.spec.load import load_experiment, peek

    name, plugins = peek(file, overrides)
    if plugins:
        # Reading results must not execute a user's code: then only the points that were run are known.
        return name, ()
    experiment = load_experiment(file, overrides)
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
