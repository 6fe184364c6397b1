"""`[tracking]`: the experiment trackers that follow a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hpcps.registry import Config

PACKAGES: Mapping[str, tuple[str, str]] = {
    "mlflow": ("mlflow", "mlflow"),
    "wandb": ("wandb", "wandb"),
    "trackio": ("trackio", "trackio"),
    "tensorboard": ("tensorboardX", "tensorboard"),
}
"""The module of each tracker, and the extra of hpcps that installs it."""


class Tracking(Config):
    """Experiment trackers that get the evaluations and rounds of a run while it runs."""

    to: Annotated[
        tuple[Literal["mlflow", "wandb", "trackio", "tensorboard"], ...], Field(strict=False, max_length=4)
    ] = Field(
        (),
        description="The trackers. A process beside that of the coordinator reads the records and writes "
        "results/NAME/export/TRACKER, as `hpcps export` does; a tracker that fails does not end the run.",
    )
