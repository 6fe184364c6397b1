"""The learning rate of each step: step decay and linear warm-up, counted in a role's own epochs."""

from __future__ import annotations

import math

from hpcps.spec.schema import Run, Train


def schedule_of(run: Run, role: str, index: int) -> Train:
    """Return the `[train]` table of one role, with its batch size, its learning rate and its decay epochs."""
    train = run.train
    changes: dict[str, object] = {"batch_size": run.batch_size(role, index)}
    if train.lr_scale == "sqrt_workers":
        scaled = train.optimizer.lr * math.sqrt(1 / (run.topology.workers + 1))
        changes["optimizer"] = train.optimizer.model_copy(update={"lr": scaled})
    if role == "validator" and train.lr_decay.validator_epochs is not None:
        changes["lr_decay"] = train.lr_decay.model_copy(update={"epochs": train.lr_decay.validator_epochs})
    return train.model_copy(update=changes)


def learning_rate(train: Train, step: int, steps_per_epoch: int, epoch: int | None = None) -> float:
    """Return the learning rate of a step.

    Decay "at epoch n" takes effect from the (n+1)th epoch on. Warm-up multiplies the decayed rate by a fraction that
    rises linearly from `warmup.start` at the first step to 1 at the first step after `warmup.epochs`.

    Args:
        train: the optimizer's rate, its decay and its warm-up.
        step: the number of steps before it.
        steps_per_epoch: the steps of an epoch of the role.
        epoch: the finished epochs for the decay; by default those of the role's own steps.
    """
    if epoch is None:
        epoch = step // steps_per_epoch
    rate = train.optimizer.lr * train.lr_decay.factor ** sum(epoch >= n for n in train.lr_decay.epochs)
    rising = train.warmup.epochs * steps_per_epoch
    if step < rising:
        rate *= train.warmup.start + (1 - train.warmup.start) * step / rising
    return rate
