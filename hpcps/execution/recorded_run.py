"""The settings of a recorded run, with the plugins that it used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from hpcps.errors import InputError, RunError
from hpcps.inputs import read_json
from hpcps.records.run_directory import PLUGINS, SPEC, RunDirectory
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
        InputError: the file of the settings is missing or damaged.
        RunError: this version of hpcps cannot read the settings.
    """
    if not directory.spec:
        read_json(directory.path / SPEC)  # its error states the reason, unless the file is JSON
        raise InputError(directory.path / SPEC, "it does not have the form of the settings of a run")
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
