"""The exchange of hpcps for scripts of TensorFlow: eager, and within `tf.function`.

The names are those of BytePS and Horovod, and the results have the bits of those of `hpcps.torch`. `hpcps launch -n 4
python train.py` or `mpirun -n 4` starts a script; docs/how-to/own-script.md shows it. XLA cannot call Python, so
exchanges need `jit_compile=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray
from tensorflow.python.ops import control_flow_util

from hpcps.errors import SpecError
from hpcps.session.arrays import ArrayExchanges, ArrayGradients, Compressing
from hpcps.session.current import (
    cross_rank,
    cross_size,
    get_pushpull_speed,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    log,
    rank,
    resume,
    shutdown,
    size,
    suspend,
)
from hpcps.session.member import TIMEOUT
from hpcps.session.reduction import Reduction, operation_of, reduction_of
from hpcps.session.wrapped import noted

__all__ = [
    "DistributedGradientTape",
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

_ARRAYS = ArrayExchanges("hpcps.tensorflow")
_known: dict[tuple[Any, ...], tuple[ArrayGradients, list[Any]]] = {}
"""The gradients of groups of variables, which may be those of a new tape in each step."""


def init(timeout: float = TIMEOUT, *, alone: bool = False, credit: int | None = None) -> None:
    """Join the other processes of the script; see `hpcps.numpy.init`.

    Args:
        timeout: seconds in which the others must call `init`, and in which an exchange must end.
        alone: whether this process exchanges nothing, although a launcher may know of others.
        credit: the bytes of large tensors that this process has on their way at a time; see `hpcps.numpy.init`.

    Raises:
        SpecError: `credit` cannot be used.
        LaunchError: the processes cannot reach each other, they have ended their session, or there may be others of
            which this process does not know.
        RunError: this process has joined them with another front end.
    """
    _ARRAYS.init(timeout, alone, credit)


def push_pull(
    tensor: Any,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    compression: Compressing = None,
    rule: object = None,
) -> tf.Tensor:
    """Return the mean or sum of the tensors that all processes give, or what a rule makes of them.

    Args:
        tensor: a dense tensor, a variable, or what TensorFlow makes a tensor of; of the same type and shape in all
            processes.
        average: whether to return the mean, else the sum; the mean is for floats.
        name: the name of the tensor in all processes; None: a name from its type and shape. Without names, all
            processes must begin exchanges of one type and shape in the same order.
        priority: how urgent it is; see `hpcps.numpy.push_pull`.
        compression: a compressor of hpcps by its name, its table or itself.
        rule: a rule of hpcps in place of the mean, see `hpcps.numpy.push_pull`.

    Returns:
        A new tensor, without a gradient. Within `tf.function` each call of the function exchanges.

    Raises:
        SpecError: the tensor or the rule cannot be used, or XLA compiles the function.
        RunError: the processes give different tensors, or one of them has ended; the message names it and the tensor.
            Within `tf.function`, an error of TensorFlow repeats the message.
    """

    def exchange(array: ArrayLike) -> list[NDArray[Any]]:
        return [_ARRAYS.push_pull(array, average, name, rule, compression, priority).finish()]

    return _computed(exchange, [_dense(tensor)])[0]


allreduce = push_pull
"""`push_pull` by the name that Horovod has for it."""


def broadcast(tensor: Any, root_rank: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the tensor of one process in all processes.

    Args:
        tensor: a dense tensor of any type of numbers; of the same type and shape in all processes.
        root_rank: the process whose tensor all get.
        name: the name of the tensor in all processes; see `push_pull`.

    Returns:
        A new tensor.

    Raises:
        SpecError: there is no such process, or the tensor cannot be exchanged.
        RunError: the processes give other types, shapes or root ranks.
    """

    def exchange(array: ArrayLike) -> list[NDArray[Any]]:
        return [_ARRAYS.broadcast(array, root_rank, name).finish()]

    return _computed(exchange, [_dense(tensor)])[0]


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Give variables the values of those of one process, in all processes.

    Args:
        variables: variables of TensorFlow or Keras, such as `model.variables` or those of an optimizer; in the same
            order in all processes.
        root_rank: the process whose values all get.

    Raises:
        SpecError: there is no such process, or a variable cannot be exchanged.
        RunError: the processes give other types, shapes or root ranks.
    """
    found = list(variables)

    def exchange(*arrays: ArrayLike) -> list[NDArray[Any]]:
        return [each.finish() for each in [_ARRAYS.broadcast(array, root_rank, None) for array in arrays]]

    for variable, value in zip(found, _computed(exchange, [*map(_dense, found)]), strict=True):
        variable.assign(value)


class GradientCombiner:
    """Combines the gradients of the steps of one tape or optimizer.

    Several models of a script may have variables of the same names: the gradients of each group of variables have
    names of their own, and all processes meet the groups in the same order.
    """

    def __init__(self, average: bool, rule: object, compression: Compressing) -> None:
        """Combine gradients; for the arguments see `DistributedGradientTape`."""
        self._reduction: Reduction = reduction_of(operation_of(average), rule, None, 0, compression)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the combined gradients; None for variables without one."""
        used = [k for k, gradient in enumerate(gradients) if gradient is not None]
        if not used:
            return list(gradients)
        # A sparse gradient becomes dense, of which a graph does not know the shape.
        given = [tf.ensure_shape(_dense(gradients[k]), variables[k].shape) for k in used]
        known = self._gradients([variables[k] for k in used], given)
        combined = _computed(lambda *arrays: known.combine(arrays), given)
        found = [*gradients]
        for k, gradient in zip(used, combined, strict=True):
            found[k] = gradient
        return found

    def _gradients(self, variables: Sequence[Any], given: Sequence[tf.Tensor]) -> ArrayGradients:
        """Return the gradients of some variables, which are declared at the first call."""
        forms = [_form(each, name) for each, name in zip(given, map(_name, variables), strict=True)]
        key = repr(self._reduction), *map(id, variables), *((str(dtype), shape) for dtype, shape in forms)
        if key not in _known:
            names = [_name(variable) for variable in variables]
            # The variables are kept, so that no other one gets their ids.
            _known[key] = ArrayGradients(_ARRAYS, names, forms, self._reduction), [*variables]
        return _known[key][0]


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` combines the gradients of all processes. All take the same steps."""

    def __init__(
        self,
        tape: tf.GradientTape | None = None,
        *,
        average: bool = True,
        compression: Compressing = None,
        rule: object = None,
    ) -> None:
        """Combine the gradients of a tape.

        Args:
            tape: the tape, also one that has recorded already; None: a new one.
            average: whether to use the mean of the gradients, else their sum.
            compression: a compressor of hpcps by its name, its table or itself.
            rule: the rule that combines the gradients instead, by its name, its table or itself; each gradient is one
                block. A rule that sees whole vectors gets all gradients of the step.

        Raises:
            SpecError: the arguments contradict each other. `gradient` raises it if gradients cannot be combined in this
                way, or XLA compiles the step.
        """
        self._tape = tf.GradientTape() if tape is None else tape
        self._combine = GradientCombiner(average, rule, compression)

    def __enter__(self) -> DistributedGradientTape:
        """Record operations."""
        self._tape.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop recording."""
        self._tape.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        """Return what the tape has besides `gradient`, such as `watch`."""
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, **options: Any) -> Any:
        """Return the combined gradients of a target; see `tf.GradientTape.gradient`.

        Args:
            target: the loss.
            sources: a variable, or nested variables.
            output_gradients: see TensorFlow.
            options: see TensorFlow.

        Returns:
            The gradients in the structure of the sources, None where the target does not depend on one.
        """
        found = self._tape.gradient(target, sources, output_gradients, **options)
        return tf.nest.pack_sequence_as(sources, self._combine(tf.nest.flatten(found), tf.nest.flatten(sources)))


def _computed(exchange: Callable[..., list[NDArray[Any]]], tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return tensors of the types and shapes of others, which an exchange of arrays makes of them: now, or in a graph.

    Raises:
        SpecError: XLA compiles the graph.
    """

    def call(*arrays: Any) -> list[NDArray[Any]]:
        with noted():
            return exchange(*arrays)

    if tf.executing_eagerly():
        return [tf.constant(each) for each in call(*(tensor.numpy() for tensor in tensors))]
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise SpecError(
            "an exchange in a function that XLA compiles, which cannot call Python: give tf.function or compile() "
            "jit_compile=False"
        )
    found = tf.numpy_function(call, tensors, [tensor.dtype for tensor in tensors])
    for tensor, each in zip(tensors, found, strict=True):
        each.set_shape(tensor.shape)
    return list(found)


def _dense(tensor: Any) -> tf.Tensor:
    """Return what a script gives as a dense tensor.

    Raises:
        SpecError: TensorFlow makes no tensor of it.
    """
    if isinstance(tensor, tf.SparseTensor):
        return tf.sparse.to_dense(tensor)
    try:
        return tf.convert_to_tensor(tensor)  # also of indexed slices, as an embedding has them
    except (TypeError, ValueError) as error:
        raise SpecError(f"exchanges expect a tensor, not {tensor!r:.50}: {error}") from error


def _form(tensor: tf.Tensor, name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the type and the shape of a gradient.

    Raises:
        SpecError: its shape is not known.
    """
    if not tensor.shape.is_fully_defined():
        raise SpecError(f"the gradient of {name} has the shape {tensor.shape}: exchanges need shapes that are known")
    return np.dtype(tensor.dtype.as_numpy_dtype), tuple(tensor.shape.as_list())


def _name(variable: Any) -> str:
    """Return the name of a variable of TensorFlow or Keras, or of a tensor."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "tensor")).partition(":")[0]
