"""A recorded run: its settings, and the evaluation of its models after the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from hpcps.errors import InputError, RunError
from hpcps.inputs import read_json, regular
from hpcps.numerics.layout import Vector
from hpcps.protocol.roster import Roster
from hpcps.records.run_directory import PLUGINS, SPEC, RunDirectory
from hpcps.registry import using
from hpcps.registry.plugins import registry_of
from hpcps.spec.schema import Run
from hpcps.training.build import build_trainer
from hpcps.training.evaluation import Evaluation


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


def evaluate_model(directory: RunDirectory, model: Vector) -> Evaluation:
    """Evaluate a model on the test set of a run, with the plugins that the run used.

    BatchNorm statistics are not part of a model. They are averages over one pass of the coordinator's shard, as in a
    run with `validation.batchnorm = "reestimated"`.

    Args:
        directory: the folder of the run; only its settings are read.
        model: the parameters, `[d]`.

    Raises:
        RunError: the model is not one of this run's network, or the settings are those of another version.
        DataError: a data file is missing, truncated or corrupt.
    """
    with recorded_run(directory, "evaluate") as run:
        coordinator = Roster.of(run).coordinator
        trainer = build_trainer(run, coordinator.role, coordinator.index)
        if model.shape != (trainer.layout.size,):
            raise RunError(
                f"the model is an array of the shape {list(model.shape)}, and {run.model.name} on {run.data.name} has "
                f"{trainer.layout.size:,} parameters: give the file of a whole model of run {directory.path.name}; "
                "each server writes its part into final/"
            )
        trainer.copy_from(model)
        trainer.reestimate_statistics()
        return trainer.evaluate()


def read_model(file: Path) -> Vector:
    """Read a model from a file of numpy, as a run writes it.

    Raises:
        RunError: it cannot be read, or does not hold float32 numbers.
    """
    try:
        model = np.load(regular(file), allow_pickle=False)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        # The message of numpy advises to load objects, which may execute code.
        raise RunError(f"{file}: not an array of numbers, as numpy writes it into a .npy file") from error
    if not isinstance(model, np.ndarray) or model.dtype != np.float32:
        raise RunError(f"{file}: expects an array of float32, as in final/ of a run's folder")
    return model
