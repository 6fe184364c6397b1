"""The exchange of hpcps for scripts of MXNet's Gluon: `DistributedTrainer`, in place of `gluon.Trainer`, with any rule.

The names are those of BytePS. The session, and arrays of numpy, are those of `hpcps.numpy`; docs/how-to/own-script.md
shows a script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from mxnet import gluon, nd

import hpcps.numpy as arrays
from hpcps.errors import RunError, SpecError
from hpcps.numpy import (
    Compressing,
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
    shutdown,
    size,
)
from hpcps.session.current import checked_rank, session
from hpcps.session.reduction import is_whole, reduction_of, rule_of
from hpcps.session.tensors import Declaration

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
    "shutdown",
    "size",
]


def push_pull(
    array: Any,
    average: bool = True,
    name: str | None = None,
    *,
    compression: Compressing = None,
    rule: object = None,
) -> Any:
    """Return the mean or sum of the arrays of all processes, or what a rule makes of them; see `hpcps.numpy.push_pull`.

    Args:
        array: an `NDArray`, of the same type and shape in all processes.
        average: whether to return the mean, else the sum.
        name: the name of the array in all processes.
        compression: a compressor of hpcps.
        rule: a rule of hpcps in place of the mean.

    Returns:
        A new `NDArray` on the same device.
    """
    found = arrays.push_pull(array.asnumpy(), average, name, compression=compression, rule=rule)
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
            rule: a rule of hpcps in place of the mean, as for `hpcps.numpy.push_pull`. One that sees whole vectors gets
                all gradients of a step at once, others the gradient of each parameter.
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
        self._whole = is_whole(self._reduction, rule_of(self._reduction, size()))
        self._gradients: list[list[Any]] | None = None
        broadcast_parameters(self._params, root_rank)

    def _allreduce_grads(self) -> None:
        if self._gradients is None:
            self._gradients = self._combined_at_once()
        # Backward passes compute the gradients of the last layers first, and MXNet may still compute the others.
        begun = [self._begin(group) for group in reversed(self._gradients)]
        for group, exchange, values in begun:
            session().wait(exchange)
            for param, value in zip(group, values, strict=True):
                param.list_grad()[0][:] = value
        session().step()

    def _update(self, ignore_stale_grad: bool = False) -> None:
        super()._update(ignore_stale_grad)
        session().updated()

    def _combined_at_once(self) -> list[list[Any]]:
        """Return the parameters with gradients, in the groups that are combined at once.

        Raises:
            SpecError: a rule that sees whole vectors would get elements of several types.
        """
        params = [param for param in self._params if param.grad_req != "null"]
        types = sorted({np.dtype(param.dtype).name for param in params})
        if not self._whole or not params:
            return [[param] for param in params]
        if len(types) > 1:
            raise SpecError(
                f"DistributedTrainer: this rule gets all gradients at once, and they are {' and '.join(types)}: use "
                "one type, or a rule that sees coordinates"
            )
        return [params]

    def _begin(self, group: Sequence[Any]) -> tuple[Sequence[Any], Any, list[np.ndarray[Any, Any]]]:
        """Begin the exchange of some gradients; return the parameters, the exchange, and what gets its result.

        Raises:
            RunError: a gradient has not been computed in this step.
        """
        for param in group:
            if not param.list_data()[0]._fresh_grad:
                raise RunError(
                    f"DistributedTrainer: no backward pass since the last step has computed the gradient of "
                    f"{param.name}, and each step exchanges all gradients: set its grad_req to 'null' if it is not used"
                )
        values = [param.list_grad()[0].asnumpy() for param in group]
        names = [param.name for param in group]
        label = names[0] if len(group) == 1 else f"{names[0]} to {names[-1]}"
        shapes = tuple(value.shape for value in values)
        tensor = session().declare(Declaration(f"gradient/{label}", values[0].dtype.name, shapes, self._reduction))
        given = [value.reshape(-1).view(np.uint8) for value in values]
        return group, session().start(tensor, given, given), values


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
