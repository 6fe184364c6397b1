"""The settings of a recorded run, with the plugins that it used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from hpcps.errors import RunError
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.registry import using
from hpcps.registry.plugins import registry_of
from hpcps.spec.schema import Run


@contextmanager
def recorded_run(directory: RunDirectory, purpose: str) -> Iterator[Run]:
    """Yield the settings of a run; inside the block its plugins are in use.

    Args:
        directory: the folder of the run.
        purpose: what to do with the run, for a message, such as `evaluate`.

    Raises:
        RunError: this version of hpcps cannot read the settings.
    """
    with using(registry_of(directory.plugins, directory.path / PLUGINS)):
        try:
            run = Run.model_validate(directory.spec.get("run", {}))
        except ValidationError as error:
            wrong = ".".join(map(str, error.errors()[0]["loc"]))
            raise RunError(
                f"{directory.path}: this version of hpcps cannot read its settings ({wrong}): {purpose} it with the "
                "version in its provenance.json, or run the experiment again"
            ) from error
        yield run
