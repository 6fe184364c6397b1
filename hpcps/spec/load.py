"""From an experiment file to its runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcps.errors import SpecError
from hpcps.spec.draft import Draft, drafts_of
from hpcps.spec.identity import run_id
from hpcps.spec.label import labels
from hpcps.spec.locate import locate
from hpcps.spec.mistakes import Mistakes
from hpcps.spec.overrides import Override, last_of_each, parse_override
from hpcps.spec.problems import Problem
from hpcps.spec.schema import Run
from hpcps.spec.selection import select
from hpcps.spec.sweep import KeyPath
from hpcps.spec.tree import Tree, get
from hpcps.spec.validate import validate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Experiment", "Point", "load_experiment", "select"]


@dataclass(frozen=True)
class Point:
    """One run of an experiment.

    Attributes:
        index: its place in the file's sweep, from 0.
        run: its values, resolved: sweep, overrides and preset are in.
        run_id: what it is known by; equal specs have equal ids.
        label: what sets it apart from the others, for people.
        swept: the values that the sweep gave it, by dotted key.
    """

    index: int
    run: Run
    run_id: str
    label: str
    swept: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """An experiment file, read and checked.

    Attributes:
        path: the file.
        name: the experiment's name.
        points: its runs: those of the product in its order, then what the file includes.
    """

    path: Path
    name: str
    points: tuple[Point, ...]


def load_experiment(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file, expand its sweep and check every point.

    Args:
        path: the TOML file.
        overrides: `key=value` texts that go over the file; one for a swept key replaces the sweep of that key.

    Raises:
        SpecError: the file cannot be read, or something in it is wrong; the message lists all mistakes.
    """
    path = Path(path)
    text = _read(path)
    tables = _parse(path, text)
    mistakes = Mistakes(path, locate(text))
    over = _overrides(overrides, mistakes)
    drafts = drafts_of(tables, over, mistakes)
    runs = _validate(tables, drafts, mistakes)
    mistakes.stop()
    names = _labels(drafts, runs)
    result = tuple(
        Point(index, run, run_id(run), label, {".".join(a.key): a.value for a in draft.made})
        for index, (run, label, draft) in enumerate(zip(runs, names, drafts, strict=True))
    )
    _refuse_twins(result, over, mistakes)
    return Experiment(path, runs[0].name, result)


def _labels(drafts: Sequence[Draft], runs: Sequence[Run]) -> list[str]:
    """Name the points: those of the product by what is swept, included ones by what they have in addition."""
    trees = [run.model_dump(mode="json") for run in runs]
    swept = dict.fromkeys(a.key for draft in drafts if draft.included is None for a in draft.made)
    names = labels(trees, [*swept], runs[0].name)
    for place, draft in enumerate(drafts):
        if draft.included is not None:
            own = dict.fromkeys(assignment.key for assignment in draft.made)
            names[place] = draft.included.label or labels(trees, [*(swept | own)], runs[0].name)[place]
    return names


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path}: there is no such file") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SpecError(f"{path}:{line}: not UTF-8 text, as TOML must be") from error


def _parse(path: Path, text: str) -> Tree:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, place = str(error), f":{text.count(chr(10)) + 1}"
        if found := re.search(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", what):
            what, place = found[1], f":{found[2]}:{found[3]}" if found[2] else place
        raise SpecError(f"{path}{place}: not valid TOML: {what}") from error


def _overrides(texts: Iterable[str], mistakes: Mistakes) -> list[Override]:
    overrides = []
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except ValueError as error:
            mistakes.add_override(text, str(error))
    return last_of_each(overrides)


def _validate(base: Tree, drafts: Sequence[Draft], mistakes: Mistakes) -> list[Run]:
    runs = []
    for draft in drafts:
        run, problems = validate(draft.tree)
        if run is not None:
            runs.append(run)
        for problem in problems:
            mistakes.add(problem, draft.changes)
    # A value that the sweep or an override replaces in every point is still to be right.
    for problem in validate(base)[1]:
        if not problem.involves and get(base, _names(problem)) is not None:
            mistakes.add(problem)
    return runs


def _names(problem: Problem) -> KeyPath:
    return tuple(part for part in problem.path if isinstance(part, str))


def _refuse_twins(points: Sequence[Point], over: Sequence[Override], mistakes: Mistakes) -> None:
    """Refuse points that are the same run, all of them at once."""
    alike: dict[str, list[str]] = {}
    for point in points:
        alike.setdefault(point.run_id, []).append(f"{point.index} ({point.label})")
    twins = [f"points {', '.join(names[:-1])} and {names[-1]}" for names in alike.values() if len(names) > 1]
    if not twins:
        return
    others = f"; likewise {len(twins) - 1} more" if len(twins) > 1 else ""
    message = f"{twins[0]} are the same run: nothing that they differ in affects the results{others}"
    if over:
        # The file was right, or will be told so without them.
        texts = " --set ".join(override.text for override in over)
        mistakes.add_override(texts, f"{message}; set the swept key itself, or a table around it, to have one of them")
    else:
        mistakes.add(Problem(("sweep",), message))
    mistakes.stop()
