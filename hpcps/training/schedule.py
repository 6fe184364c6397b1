"""The learning rate of each step: decay and linear warm-up, counted in a role's own epochs."""

from __future__ import annotations

import math

from hpcps.data.shards import shard_size
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


def steps_per_epoch(run: Run, role: str, index: int) -> int:
    """Return the local steps of an epoch of a role; see `Trainer.steps_per_epoch`.

    Raises:
        SpecError: a shard does not fill one batch.
    """
    return run.train.passes_per_epoch * (shard_size(run.data, run.largest_batch) // run.epoch_batch(role, index))


def beginning(run: Run, role: str, index: int) -> list[int]:
    """Return where a trainer is when the present number of workers begins; see `Trainer.position`.

    All are where an epoch begins, as if the number had always been the present one.
    """
    epoch = run.members[-1].epoch
    return [epoch * steps_per_epoch(run, role, index), epoch * run.train.passes_per_epoch, 0]


def learning_rate(train: Train, step: int, steps_per_epoch: int, epoch: int | None = None) -> float:
    """Return the learning rate of a step.

    Step decay "at epoch n" takes effect from the (n+1)th epoch on. Cosine decay ends with the last epoch; further steps
    have the final rate. Warm-up multiplies the decayed rate by a fraction that rises linearly from `warmup.start` at
    the first step to 1 at the first step after `warmup.epochs`.

    Args:
        train: the optimizer's rate, its decay and its warm-up.
        step: the number of steps before it.
        steps_per_epoch: the steps of an epoch of the role.
        epoch: the finished epochs for the decay; by default those of the role's own steps.
    """
    decay = train.lr_decay
    if decay.schedule == "cosine":
        done = step / steps_per_epoch if epoch is None else epoch
        share = (done - train.warmup.epochs) / max(train.epochs - train.warmup.epochs, 1)
        fall = (1 + math.cos(math.pi * min(max(share, 0.0), 1.0))) / 2
        rate = train.optimizer.lr * (decay.final + (1 - decay.final) * fall)
    else:
        ended = step // steps_per_epoch if epoch is None else epoch
        rate = train.optimizer.lr * decay.factor ** sum(ended >= n for n in decay.epochs)
    rising = train.warmup.epochs * steps_per_epoch
    if step < rising:
        rate *= train.warmup.start + (1 - train.warmup.start) * step / rising
    return rate
