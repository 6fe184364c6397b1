"""The exchange of hpcps for scripts of JAX: of trees of arrays, and of gradients within `jit`.

The results have the bits of those of `hpcps.torch`. `hpcps launch -n 4 python train.py` or `mpirun -n 4` starts a
script; docs/how-to/own-script.md shows it. Each process computes on one device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import jax
import numpy as np
import optax
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from numpy.typing import ArrayLike, NDArray

from hpcps.errors import HpcpsError, SpecError
from hpcps.session.arrays import ArrayExchanges, ArrayGradients, Compressing, PendingArray
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
    session,
    shutdown,
    size,
    suspend,
)
from hpcps.session.member import TIMEOUT
from hpcps.session.reduction import operation_of, reduction_of
from hpcps.session.wrapped import noted

__all__ = [
    "broadcast",
    "cross_rank",
    "cross_size",
    "exchange",
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

_ARRAYS = ArrayExchanges("hpcps.jax")


def init(timeout: float = TIMEOUT, *, alone: bool = False, credit: int | None = None) -> None:
    """Join the other processes of the script; see `hpcps.numpy.init`.

    Args:
        timeout: seconds in which the others must call `init`, and in which an exchange must end.
        alone: whether this process exchanges nothing, although a launcher may know of others.
        credit: the bytes of large arrays that this process has on their way at a time; see `hpcps.numpy.init`.

    Raises:
        SpecError: `credit` cannot be used.
        LaunchError: the processes cannot reach each other, they have ended their session, or there may be others of
            which this process does not know.
        RunError: this process has joined them with another front end.
    """
    first = not is_initialized()
    _ARRAYS.init(timeout, alone, credit)
    if first:
        session().expect(_computed)


def push_pull(
    tree: Any,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    compression: Compressing = None,
    rule: object = None,
) -> Any:
    """Return the mean or sum of the trees of arrays that all processes give, or what a rule makes of them.

    Within `jit`, `exchange` does this for gradients.

    Args:
        tree: an array, or a tree of arrays or numbers; of the same structure, types and shapes in all processes.
        average: whether to return the mean, else the sum; the mean is for floats.
        name: the name of the tree in all processes; None: names from the types and shapes of its arrays. Without names,
            all processes must begin exchanges of one type and shape in the same order.
        priority: how urgent it is; see `hpcps.numpy.push_pull`.
        compression: a compressor of hpcps by its name, its table or itself.
        rule: a rule of hpcps in place of the mean, see `hpcps.numpy.push_pull`. One that sees whole vectors sees each
            array by itself.

    Returns:
        A tree of new arrays: of JAX, on the device of what was given, in place of arrays of JAX, else of numpy.

    Raises:
        SpecError: an array or the rule cannot be used, or this is called within `jit`, `grad` or `vmap`.
        RunError: the processes give different arrays, or one of them has ended; the message names it and the array.
    """
    return _each(tree, name, lambda leaf, called: _ARRAYS.push_pull(leaf, average, called, rule, compression, priority))


def broadcast(tree: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the tree of arrays of one process in all processes.

    Args:
        tree: an array, or a tree of arrays or numbers, such as parameters or the state of an optimizer; of the same
            structure, types and shapes in all processes.
        root_rank: the process whose arrays all get.
        name: the name of the tree in all processes; see `push_pull`.

    Returns:
        A tree of new arrays, see `push_pull`.

    Raises:
        SpecError: there is no such process, or an array cannot be exchanged.
        RunError: the processes give other types, shapes or root ranks.
    """
    return _each(tree, name, lambda leaf, called: _ARRAYS.broadcast(leaf, root_rank, called))


def exchange(
    *, average: bool = True, compression: Compressing = None, rule: object = None
) -> optax.GradientTransformation:
    """Return a transformation of optax that combines the gradients of all processes, also within `jit`.

    `optax.chain(hpcps.jax.exchange(), optax.sgd(0.1))` is the optimizer of a script; what stands before `exchange` in
    the chain sees the gradients of this process, what stands after it the combined ones. All processes take the same
    steps.

    Args:
        average: whether to use the mean of the gradients, else their sum.
        compression: a compressor of hpcps by its name, its table or itself.
        rule: the rule that combines the gradients instead, by its name, its table or itself; each array is one block. A
            rule that sees whole vectors gets all gradients of the step.

    Raises:
        SpecError: the arguments contradict each other. The first step raises it if gradients cannot be combined in this
            way, and where `vmap` or several devices compute a step.
    """
    reduction = reduction_of(operation_of(average), rule, None, 0, compression)
    known: dict[object, Callable[..., list[NDArray[Any]]]] = {}

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        paths, structure = jax.tree_util.tree_flatten_with_path(updates)
        leaves = [leaf for _, leaf in paths]
        forms = [(np.dtype(leaf.dtype), tuple(leaf.shape)) for leaf in leaves]
        key = structure, tuple(forms)
        if key not in known:
            known[key] = _combining(ArrayGradients(_ARRAYS, [_path(path) for path, _ in paths], forms, reduction))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            shapes = [jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in forms]
            found = io_callback(known[key], shapes, *_on_one_device.bind(*leaves), ordered=True)
        else:
            _check_devices(max((len(leaf.devices()) for leaf in leaves if isinstance(leaf, jax.Array)), default=1))
            found = [*map(_like, leaves, known[key](*leaves))]
        return structure.unflatten(found), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _combining(gradients: ArrayGradients) -> Callable[..., list[NDArray[Any]]]:
    """Return what JAX calls in a step. It must not use JAX, whose threads may all wait for its result."""

    def combine(*leaves: ArrayLike) -> list[NDArray[Any]]:
        with noted():
            return gradients.combine(leaves)

    return combine


def _each(tree: Any, name: str | None, begin: Callable[[Any, str | None], PendingArray]) -> Any:
    """Begin an exchange of each array of a tree, by its name; return the tree of the results."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    if any(isinstance(leaf, jax.core.Tracer) for _, leaf in paths):
        raise SpecError(
            "push_pull and broadcast exchange arrays with values, which there are not within jit, grad or vmap: call "
            "them outside of it, or use the transformation exchange() for gradients"
        )
    pending = [begin(leaf, name and "/".join(filter(None, (name, _path(path))))) for path, leaf in paths]
    return structure.unflatten(_like(leaf, each.finish()) for (_, leaf), each in zip(paths, pending, strict=True))


def _path(path: Any) -> str:
    """Return the name of an array by its place in a tree, such as `dense/kernel`; empty if it is the tree."""
    return str(jax.tree_util.keystr(path, simple=True, separator="/"))


def _like(given: Any, result: NDArray[Any]) -> Any:
    """Return a result as an array of JAX on the device of what was given, if this is such an array."""
    return jax.device_put(result, given.sharding) if isinstance(given, jax.Array) else result


def _computed() -> str:
    """Wait, at the end of the session, for the steps that JAX still computes; they leave nothing unfinished."""
    with suppress(jax.errors.JaxRuntimeError):  # the session has the error of an exchange
        jax.effects_barrier()
    return ""


def _check_devices(count: int) -> None:
    """Check that one device computes a step.

    Raises:
        SpecError: several do.
    """
    if count > 1:
        raise SpecError(
            f"exchange() in a step on {count} devices: each process combines gradients of one device: start a process "
            "for each device with `hpcps launch`, without pmap, shard_map or a sharding over devices"
        )


def _lower(context: Any, *operands: Any) -> Sequence[Any]:
    axes = context.module_context.axis_context
    _check_devices(axes.mesh.size if hasattr(axes, "mesh") else axes.num_devices)
    return operands


def _refuse_batches(*given: object) -> NoReturn:
    raise SpecError(
        "exchange() within vmap: a step has one exchange for all of a process: call vmap for the gradients alone, and "
        "the optimizer outside of it"
    )


_on_one_device = Primitive("hpcps.jax.exchange")
"""Returns its operands, where one device computes them; JAX knows this only when it compiles a step."""
_on_one_device.multiple_results = True
_on_one_device.def_abstract_eval(lambda *operands: operands)
mlir.register_lowering(_on_one_device, _lower)
batching.primitive_batchers[_on_one_device] = _refuse_batches
# JAX prints the traceback of an error in a callback, and repeats its text in the exception of the step.
logging.getLogger("jax._src.callback").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HpcpsError))
)
