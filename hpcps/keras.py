"""The exchange of hpcps for scripts of Keras 3 with TensorFlow: an optimizer, and callbacks of `fit`.

`init`, `push_pull` and the like are those of `hpcps.tensorflow`. XLA cannot call Python, so a model is compiled with
`jit_compile=False`; docs/how-to/own-script.md shows a script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from hpcps.errors import LaunchError, SpecError
from hpcps.session.arrays import Compressing
from hpcps.session.join import messages
from hpcps.tensorflow import (
    GradientCombiner,
    allreduce,
    broadcast,
    broadcast_variables,
    cross_rank,
    cross_size,
    get_pushpull_speed,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    log,
    push_pull,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistributedOptimizer",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "get_pushpull_speed",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "log",
    "push_pull",
    "rank",
    "resume",
    "shutdown",
    "size",
    "suspend",
]


@messages()
def _check_backend() -> None:
    """Check that Keras uses TensorFlow.

    Raises:
        LaunchError: it does not.
    """
    if keras.backend.backend() != "tensorflow":
        raise LaunchError(
            f"hpcps.keras is for Keras with TensorFlow, and the backend is {keras.backend.backend()}: set "
            "KERAS_BACKEND to tensorflow before Keras is imported"
        )


_check_backend()

callbacks = sys.modules[__name__]
"""Scripts of Horovod and BytePS take the callbacks from there."""


class _CombiningOptimizer:
    """What `DistributedOptimizer` adds to the class of an optimizer, which is saved as the class that it had before."""

    _combine: GradientCombiner

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Take a step with the combined gradients of all processes."""
        variables = self._trainable_variables if trainable_variables is None else trainable_variables  # type: ignore[attr-defined]
        super().apply(self._combine([*grads], [*variables]), trainable_variables)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    *,
    average: bool = True,
    compression: Compressing = None,
    rule: object = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """Make an optimizer combine the gradients of all processes in each step, and return it.

    The optimizer keeps its class and state. What it does with gradients, such as clipping and accumulating, it does
    with the combined ones. A saved model has the optimizer without the exchange.

    Args:
        optimizer: an optimizer of Keras 3. With the policy `mixed_float16`, a LossScaleOptimizer.
        average: whether steps use the mean of the gradients, else their sum.
        compression: a compressor of hpcps by its name, its table or itself.
        rule: the rule that combines the gradients instead, by its name, its table or itself; each gradient is one
            block. A rule that sees whole vectors gets all gradients of the step.
        backward_passes_per_step: 1, as in Horovod's examples; Keras adds up gradients itself.
        average_aggregated_gradients: has no effect, as with Horovod, on the gradient of one pass.

    Raises:
        SpecError: it is no optimizer of Keras, has the exchange already, or the arguments contradict each other. The
            first step raises it if gradients cannot be combined in this way, or XLA compiles the step.
    """
    if backward_passes_per_step != 1:
        raise SpecError(
            f"backward_passes_per_step is {backward_passes_per_step!r}: let Keras add up gradients, with "
            "gradient_accumulation_steps of the optimizer"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise SpecError(f"DistributedOptimizer expects an optimizer of Keras 3, not {optimizer!r:.50}")
    if isinstance(optimizer, _CombiningOptimizer):
        raise SpecError("DistributedOptimizer has this optimizer already: call it once for each optimizer")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if keras.config.dtype_policy().name == "mixed_float16" and not scales:
        raise SpecError(
            "with mixed_float16 Keras skips steps whose gradients are not finite, and all processes must skip the same "
            "ones: use DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))"
        )
    combine = GradientCombiner(average, rule, compression)
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_CombiningOptimizer, kind), {"__module__": kind.__module__})
    optimizer._combine = combine
    return optimizer


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras may not be installed
    """Gives all processes the weights and the state of the optimizer of one, before the first batch.

    Each process keeps the seeds of layers such as Dropout.
    """

    def __init__(self, root_rank: int = 0) -> None:
        """Broadcast from a process."""
        super().__init__()
        self._root_rank = root_rank

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast; see `hpcps.tensorflow.broadcast_variables`."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        broadcast_variables([*self.model.weights, *optimizer.variables], self._root_rank)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces the metrics of an epoch by their means over all processes.

    It stands before callbacks that use metrics, such as ReduceLROnPlateau or ModelCheckpoint.
    """

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics, by their names."""
        for name in sorted(logs or {}):
            value = np.float64(logs[name])
            logs[name] = float(push_pull(value, name=f"metric/{name}"))


class LearningRateWarmupCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Raises the learning rate, batch by batch, from that of one process to that of all.

    Batch `b` of `s` in epoch `e` has the learning rate `initial_lr / n * (1 + (e + b / s) * (n - 1) / warmup_epochs)`
    with `n` processes (Goyal et al. 2017, section 2.2); after `warmup_epochs` it is `initial_lr`.
    """

    def __init__(
        self, initial_lr: float, warmup_epochs: float = 5, steps_per_epoch: int | None = None, verbose: int = 0
    ) -> None:
        """Warm up.

        Args:
            initial_lr: the learning rate for all processes, such as that for one process times `size()`.
            warmup_epochs: the epochs until it is reached.
            steps_per_epoch: the batches of an epoch; None: those that `fit` knows.
            verbose: whether process 0 prints the learning rate at the end of the warm-up.

        Raises:
            SpecError: `warmup_epochs` is not positive.
        """
        super().__init__()
        if not warmup_epochs > 0:
            raise SpecError(f"warmup_epochs is {warmup_epochs!r}: give a positive number, or leave out the callback")
        self._rate, self._epochs, self._steps = initial_lr, warmup_epochs, steps_per_epoch
        self._verbose, self._epoch, self._warm = verbose, 0, False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate."""
        steps = self._steps or self.params.get("steps")
        if not steps:
            raise SpecError(
                "LearningRateWarmupCallback needs steps_per_epoch: fit does not know the batches of an epoch"
            )
        passed = self._epoch + batch / steps
        if passed < self._epochs:
            self.model.optimizer.learning_rate = self._rate / size() * (1 + passed * (size() - 1) / self._epochs)
        elif not self._warm:
            self._warm = True
            self.model.optimizer.learning_rate = self._rate
            if self._verbose and rank() == 0:
                print(f"epoch {self._epoch + 1}: the learning rate is warmed up to {self._rate:g}", flush=True)
