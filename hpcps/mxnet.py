"""The exchange of hpcps for scripts of MXNet's Gluon: `DistributedTrainer`, in place of `gluon.Trainer`, with any rule.

The names are those of BytePS. The session, and arrays of numpy, are those of `hpcps.numpy`; docs/how-to/own-script.md
shows a script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from mxnet import gluon, nd

import hpcps.numpy as arrays
from hpcps.errors import RunError, SpecError
from hpcps.numpy import (
    cross_rank,
    cross_size,
    get_pushpull_speed,
    init,
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
from hpcps.session.arrays import ArrayExchanges, ArrayGradients, Compressing
from hpcps.session.current import checked_rank, session
from hpcps.session.reduction import reduction_of, rule_of

__all__ = [
    "DistributedTrainer",
    "broadcast",
    "broadcast_parameters",
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

_ARRAYS = ArrayExchanges(arrays.__name__)


def push_pull(
    array: Any,
    average: bool = True,
    name: str | None = None,
    priority: int = 0,
    *,
    compression: Compressing = None,
    rule: object = None,
) -> Any:
    """Return the mean or sum of the arrays of all processes, or what a rule makes of them; see `hpcps.numpy.push_pull`.

    Args:
        array: an `NDArray`, of the same type and shape in all processes.
        average: whether to return the mean, else the sum.
        name: the name of the array in all processes.
        priority: how urgent it is.
        compression: a compressor of hpcps.
        rule: a rule of hpcps in place of the mean.

    Returns:
        A new `NDArray` on the same device.
    """
    found = arrays.push_pull(array.asnumpy(), average, name, priority, compression=compression, rule=rule)
    return nd.array(found, ctx=array.context, dtype=found.dtype)


def broadcast(array: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the `NDArray` of one process in all processes, as a new one; see `hpcps.numpy.broadcast`."""
    found = arrays.broadcast(array.asnumpy(), root_rank, name)
    return nd.array(found, ctx=array.context, dtype=found.dtype)


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Give all processes the parameters of one of them.

    A parameter whose shape is not known yet is broadcast when its first forward pass initializes it, before it is used.

    Args:
        params: the parameters of a block, such as `net.collect_params()`; in all processes the same, in the same order.
        root_rank: the process whose parameters all get.

    Raises:
        SpecError: there is no such process.
    """
    checked_rank(root_rank, "parameters")
    for param in _in_order(params):
        if param._deferred_init:
            param._init_impl = partial(_initialize, param, param._init_impl, root_rank)
        else:
            _broadcast(param, root_rank)


class DistributedTrainer(gluon.Trainer):  # type: ignore[misc]  # MXNet has no types
    """A `gluon.Trainer` whose steps use the gradients of all processes: their mean, or what a rule makes of them.

    All processes take the same steps, with the same parameters. `step(batch_size)` divides by the batch of a process.
    `allreduce_grads()` and `update(batch_size)` work too, such as for clipping between them.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: Mapping[str, Any] | None = None,
        root_rank: int = 0,
        *,
        rule: object = None,
        compression: Compressing = None,
    ) -> None:
        """Give all processes the parameters of one of them; see `broadcast_parameters`.

        Args:
            params: the parameters; see `gluon.Trainer`.
            optimizer: the optimizer, or its name; see `gluon.Trainer`.
            optimizer_params: the arguments of the optimizer; see `gluon.Trainer`.
            root_rank: the process with whose parameters all begin.
            rule: a rule of hpcps in place of the mean, as for `hpcps.numpy.push_pull`; each gradient is one block. One
                that sees whole vectors gets all gradients of a step at once.
            compression: a compressor of hpcps, with which gradients travel.

        Raises:
            SpecError: the parameters have several devices or sparse gradients, or the rule cannot be used.
        """
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        if len(self._contexts) > 1:
            raise SpecError(
                f"DistributedTrainer: the parameters are on {len(self._contexts)} devices, and a process exchanges "
                "those of one: start a process for each device"
            )
        for param in self._params:
            if param._stype != "default" or param._grad_stype != "default":
                raise SpecError(
                    f"DistributedTrainer: parameter {param.name} or its gradient is sparse, and only dense ones are "
                    "exchanged: leave out sparse_grad=True, or stype and grad_stype"
                )
        self._reduction = reduction_of("mean", rule, compression=compression)
        rule_of(self._reduction, size())  # here, so that a mistake is found before the first step
        self._gradients: ArrayGradients | None = None
        broadcast_parameters(self._params, root_rank)

    def _allreduce_grads(self) -> None:
        params = [param for param in self._params if param.grad_req != "null"]
        if self._gradients is None:
            forms = [(np.dtype(param.dtype), tuple(param.shape)) for param in params]
            self._gradients = ArrayGradients(_ARRAYS, [param.name for param in params], forms, self._reduction)
        for param in params:
            if not param.list_data()[0]._fresh_grad:
                raise RunError(
                    f"DistributedTrainer: no backward pass since the last step has computed the gradient of "
                    f"{param.name}, and each step exchanges all gradients: set its grad_req to 'null' if it is not used"
                )
        combined = self._gradients.combine([_Computed(param.list_grad()[0]) for param in params])
        for param, value in zip(params, combined, strict=True):
            param.list_grad()[0][:] = value

    def _update(self, ignore_stale_grad: bool = False) -> None:
        super()._update(ignore_stale_grad)
        session().updated()


class _Computed:
    """A gradient that numpy gets when MXNet has computed it; the exchange of others has begun by then."""

    def __init__(self, gradient: Any) -> None:
        self._gradient = gradient

    def __array__(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._gradient.asnumpy(), dtype)


def _in_order(params: Any) -> Iterable[Any]:
    """Return parameters in the order that `gluon.Trainer` gives them."""
    if not isinstance(params, Mapping | gluon.ParameterDict):
        return list(params)
    return [params[key] for key in sorted(params.keys())]


def _broadcast(param: Any, root_rank: int) -> None:
    """Give a parameter the values of one process."""
    (data, *_) = param.list_data()
    data[:] = arrays.broadcast(data.asnumpy(), root_rank, f"parameter/{param.name}")


def _initialize(param: Any, initialize: Any, root_rank: int, *given: Any) -> None:
    """Initialize a parameter whose shape has become known, and give it the values of one process."""
    param._init_impl = initialize
    initialize(*given)
    _broadcast(param, root_rank)
