"""From what a person types (a name, a file, a folder) to an experiment's results and the points of its file."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcps.errors import RunError

if TYPE_CHECKING:
    from hpcps.spec.point import Point

PUBLISHED = "published"
"""The folder, in the folder of all results, that has the published copies."""

EXPERIMENTS = Path("experiments")
"""The folder of all experiment files."""

CLONE_RESULTS = Path("results")
"""The folder of all results in a clone: its published copies are found if `$HPCPS_RESULTS` names another one, too."""


def absolute(path: Path) -> Path:
    """Make a path absolute, but keep its symbolic links: their targets may differ between hosts."""
    return Path(os.path.abspath(path))


def run_folder(point: Point, results: Path) -> Path:
    """Return the folder of the run of a point, in the folder of all results."""
    return absolute(results) / point.run.name / "runs" / point.run_id


@dataclass(frozen=True)
class ExperimentLocation:
    """The location of an experiment.

    Attributes:
        results: its folder, as `results_of` finds it; it need not exist.
        points: the points of its file, each in the form of `spec.json`; none without a file or if it names plugins.
        all_results: the folder of all results; None for the one that `results` is in.
    """

    results: Path
    points: tuple[dict[str, Any], ...] = ()
    all_results: Path | None = None

    @property
    def published(self) -> bool:
        """Whether the folder is a published copy, in which nothing may be written except by `hpcps publish`."""
        return self.results.absolute().parent.name == PUBLISHED

    @property
    def has_runs(self) -> bool:
        """Whether the folder has folders of runs; a published copy has only a table."""
        return any((self.results / "runs").glob("*"))

    @property
    def baseline(self) -> str | None:
        """The experiment that its file names for reference; tables of older versions do not name it."""
        return self.points[0]["run"]["baseline"] if self.points else None

    @property
    def own(self) -> Path:
        """The folder of runs on this machine, `results/<name>`; it need not exist."""
        return (self.all_results or self.results.parent.parent) / self.results.name if self.published else self.results

    @property
    def source(self) -> str:
        """A description of the folder, such as `results/published/quickstart, the published copy`."""
        if not self.published:
            return str(self.results)
        alone = "" if _fresh(self.own) else f" (there are no runs in {self.own})"
        return f"{self.results}, the published copy{alone}"


def results_of(name: str, results: Path) -> Path:
    """Return the folder of an experiment's results: its runs on this machine, or else its published copy.

    A copy in the folder of all results comes before one in a clone. The folder need not exist.

    Args:
        name: the name of the experiment.
        results: the folder of all results.
    """
    own = results / name
    copies = [] if _fresh(own) else [folder / PUBLISHED / name for folder in (results, CLONE_RESULTS)]
    return next((copy for copy in copies if copy.is_dir()), own)


def _fresh(own: Path) -> bool:
    return (own / "table.parquet").is_file() or ExperimentLocation(own).has_runs


def locate(text: str, results: Path, overrides: Sequence[str] = (), only: Sequence[str] = ()) -> ExperimentLocation:
    """Find an experiment by its file, its results folder, its name or a prefix of its name.

    Args:
        text: the user's text.
        results: the folder of all results.
        overrides: the values of `--set`, for the points of its file.
        only: the selectors of points; mistakes of other points of its file do not count.

    Raises:
        RunError: no experiment or several match; the message lists the experiments.
        SpecError: its experiment file has mistakes.
    """
    path = Path(text)

    def of_file(file: Path) -> ExperimentLocation:
        name, points = load_points(
            file, overrides, only, results
        )  # the name of an experiment may differ from that of its file
        return ExperimentLocation(results_of(name, results), points, results)

    def of_folder(folder: Path, all_results: Path | None = None) -> ExperimentLocation:
        file = EXPERIMENTS / f"{folder.name}.toml"
        return ExperimentLocation(
            folder, load_points(file, overrides, only, folder.parent)[1] if file.is_file() else (), all_results
        )

    if path.suffix == ".toml":
        if not path.is_file():
            raise RunError(f"no experiment file {path}")
        return of_file(path)
    if (path / "runs").is_dir() or (path / "table.parquet").is_file():
        return of_folder(path)
    copies = (copy for place in (results, CLONE_RESULTS) for copy in place.glob(f"{PUBLISHED}/*"))
    folders = {p.name for p in (*results.glob("*"), *copies) if p.is_dir()} - {PUBLISHED}
    names = sorted(folders | {p.stem for p in EXPERIMENTS.glob("*.toml")})
    meant = [text] if text in names else [name for name in names if name.startswith(text)]
    # Imported here because most of this package does not need the schema.
    from hpcps.spec.search import SEARCHED

    # The beginning of the name of an experiment does not mean the runs of its search.
    searches = [name for name in meant if name.endswith(SEARCHED) and name.removesuffix(SEARCHED).startswith(text)]
    if searches and searches == meant != [text]:
        raise RunError(f"no runs of {text!r}, only those of a search: {', '.join(searches)}")
    meant = [name for name in meant if name == text or name not in searches]
    if len(meant) == 1:
        file, folder = EXPERIMENTS / f"{meant[0]}.toml", results_of(meant[0], results)
        return of_file(file) if file.is_file() and not folder.is_dir() else of_folder(folder, results)
    if meant:
        raise RunError(f"{text!r} matches {', '.join(meant)}: type more of the name")
    near = difflib.get_close_matches(text, names, n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    known = ", ".join(names) or "none"
    raise RunError(f"no experiment {text!r}{hint} The experiments in {results}/ and {EXPERIMENTS}/ are: {known}")


_RUN_ID = re.compile(r"[0-9a-f]{4,10}")


def runs_by_id(text: str, results: Path) -> list[Path]:
    """Return the folders of the runs whose ids begin with a text of four or more characters."""
    return sorted(path for path in results.glob("*/runs/*") if _RUN_ID.fullmatch(text) and path.name.startswith(text))


def load_points(
    file: Path, overrides: Sequence[str] = (), only: Sequence[str] = (), results: Path | None = None
) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return an experiment's name and the points of its file that are selected, each in the form of `spec.json`.

    There are no points before the search that chooses their values; its result is in the folder of all results.

    Raises:
        SpecError: the file has mistakes.
    """
    # Imported here because most of this package does not need the schema.
    from hpcps.spec.load import load_experiment, peek

    name, plugins = peek(file, overrides)
    if plugins:
        # Reading results must not execute a user's code: then only the points that were run are known.
        return name, ()
    experiment = load_experiment(file, overrides, only=only, results=results)
    if any(group.chosen is None for group in experiment.search):
        return experiment.name, ()
    return experiment.name, tuple(point.spec for point in experiment.chosen)


def default_results() -> Path:
    """Return `$HPCPS_RESULTS`, which a site profile may set, or else `results`."""
    return Path(os.environ.get("HPCPS_RESULTS") or "results")
