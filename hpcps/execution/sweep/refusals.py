"""What `hpcps run` refuses on this machine before it starts anything; another machine may accept it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from hpcps.errors import HpcpsError
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import Point
from hpcps.training.build import find_framework
from hpcps.training.trial import try_data


def refusals(points: Sequence[Point], folder: Path, *, framework: bool = True) -> Iterator[HpcpsError]:
    """Yield an error for each reason why points cannot run here: results, data files, frameworks.

    Args:
        points: the points, at least one.
        folder: the folder for results, which is created if it is missing.
        framework: whether the framework that trains is required.
    """
    checks: list[Callable[[], None]] = [RunDirectory(folder).check_writable]
    checks += [partial(try_data, run) for run in {p.run.data.model_dump_json(): p.run for p in points}.values()]
    if framework:
        checks += [partial(find_framework, name) for name in sorted({p.run.model.backend for p in points})]
    for check in checks:
        try:
            check()
        except HpcpsError as error:
            yield error
