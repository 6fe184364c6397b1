"""What a round's record says of local steps."""

from __future__ import annotations

from collections.abc import Sequence

from hpcps.training.learner import Learner, Progress


def training_fields(learner: Learner, seen: Sequence[Progress]) -> dict[str, object]:
    """Return where a learner is, and what its steps since the last round saw."""
    samples = sum(progress.samples for progress in seen)
    return {
        "step": learner.steps_done,
        "epoch": learner.steps_done / learner.steps_per_epoch,
        "samples": samples,
        "loss": sum(p.loss * p.samples for p in seen) / samples if samples else None,
        "train_accuracy": sum(p.correct for p in seen) / samples if samples else None,
    }
