"""The learning rate of each step: step decay and linear warm-up, counted in a role's own epochs."""

from __future__ import annotations

from hpcps.spec.schema import Train


def learning_rate(train: Train, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step.

    Decay "at epoch n" means from the (n+1)th epoch on. Warm-up multiplies what decay gives by a fraction that rises
    linearly from `warmup.start` at the first step to 1 at the first step after `warmup.epochs`.

    Args:
        train: the optimizer's rate, its decay and its warm-up.
        step: the number of steps that came before.
        steps_per_epoch: the full batches of the role's shard.
    """
    epoch = step // steps_per_epoch
    rate = train.optimizer.lr * train.lr_decay.factor ** sum(epoch >= n for n in train.lr_decay.epochs)
    rising = train.warmup.epochs * steps_per_epoch
    if step < rising:
        rate *= train.warmup.start + (1 - train.warmup.start) * step / rising
    return rate
