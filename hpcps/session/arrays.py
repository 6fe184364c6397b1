"""Exchanges of arrays of numpy, which the front ends share whose tensors are such arrays, or become them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcps.errors import LaunchError, SpecError
from hpcps.launch.ancestry import Ancestry
from hpcps.launch.local_rank import OWN_RANK, PLAN
from hpcps.registry import Config
from hpcps.session.current import begin, check_front_end, checked_rank, rank, session
from hpcps.session.elements import COPIED, TYPES, Bytes
from hpcps.session.join import INDEPENDENT, join_launch, join_nobody, join_task, messages
from hpcps.session.outbox import checked_priority
from hpcps.session.participant import Copies
from hpcps.session.pending import PendingExchange, free_name, number_of_call, take_name
from hpcps.session.reduction import BROADCAST, Reduction, is_whole, operation_of, reduction_of, rule_of
from hpcps.session.session import Session
from hpcps.session.tensors import Declaration, Tensor

Compressing = str | Mapping[str, Any] | Config | None
"""A compressor of hpcps by its name, its table, or itself; None for arrays as they are."""
Form = tuple[np.dtype[Any], tuple[int, ...]]
"""The type and the shape of an array."""
_steps = count()


@dataclass(slots=True)
class PendingArray(PendingExchange):
    """An exchange of an array.

    Attributes:
        output: gets the result.
    """

    output: NDArray[Any]

    def finish(self) -> NDArray[Any]:
        """Wait for the result, and return it."""
        self.wait()
        return self.output


class ArrayExchanges:
    """The exchanges that a front end begins."""

    def __init__(self, front_end: str) -> None:
        """Exchange the arrays of a front end, which is the name of its module."""
        self.front_end = front_end

    def init(self, timeout: float, alone: bool, credit: object = None) -> None:
        """Join the other processes of the script; see `hpcps.numpy.init`."""
        begin(self.front_end, timeout, lambda limit: join_nobody(limit, Copies()) if alone else _join(limit), credit)

    def push_pull(
        self,
        array: ArrayLike,
        average: bool,
        name: str | None,
        rule: object,
        compression: Compressing,
        priority: object,
    ) -> PendingArray:
        """Begin to combine an array with those of the other processes; see `hpcps.numpy.push_pull`."""
        urgency, reduction = checked_priority(priority), reduction_of(operation_of(average), rule, None, 0, compression)
        return self._begin(copied(array, name), name, reduction, priority=urgency)

    def broadcast(self, array: ArrayLike, root_rank: int, name: str | None) -> PendingArray:
        """Begin to give the array of one process to all; see `hpcps.numpy.broadcast`."""
        root = checked_rank(root_rank, _called(name))
        output, own = copied(array, name, (*TYPES, *COPIED)), name and f"broadcast/{name}"
        # Processes with different roots must declare different tensors.
        return self._begin(output, own, BROADCAST, rank() == root, f" of rank {root}")

    def _begin(
        self,
        output: NDArray[Any],
        name: str | None,
        reduction: Reduction,
        given: bool = True,
        source: str = "",
        priority: int = 0,
    ) -> PendingArray:
        """Begin an exchange in place.

        Args:
            output: the array.
            name: its name; None for a name from its type and shape.
            reduction: how arrays are combined.
            given: whether this process gives its array.
            source: what its name says of the process that gives it, if only one does.
            priority: how urgent it is; larger numbers are sent first.
        """
        form = "" if name else f"unnamed {output.dtype} {list(output.shape)} {reduction}{source}"
        unnamed = free_name(form) if form else ""
        tensor = self._declared(unnamed or f"{name}{source}", output, reduction)
        values = [bytes_of(output)]
        call = number_of_call(form) if form else 0
        exchange = session().start(tensor, values if given else None, values, call, priority=priority)
        if unnamed:
            take_name(unnamed)
        return PendingArray(exchange, unnamed, output)

    def _declared(self, name: str, array: NDArray[Any], reduction: Reduction) -> Tensor:
        """Return the declared tensor of an array; see `Participant.declare`."""
        current, given = session(), (array.dtype, array.shape, reduction)
        known = current.declared.get(name)
        if known is not None and known[0] == given:
            return known[1]
        found = self.declare(Declaration(name, array.dtype.name, (array.shape,), reduction))
        current.declared[name] = given, found
        return found

    def declare(self, declaration: Declaration) -> Tensor:
        """Declare a tensor; see `Participant.declare`.

        Raises:
            RunError: another front end has joined the other processes.
        """
        check_front_end(self.front_end)
        return session().declare(declaration)


class ArrayGradients:
    """The gradients of a step, which are combined together.

    Those of one type travel together up to the size of a partition, each as a block, in the groups of
    `hpcps.torch.DistributedOptimizer`. A rule that sees whole vectors gets all of them at once.
    """

    def __init__(
        self, arrays: ArrayExchanges, names: Sequence[str], forms: Sequence[Form], reduction: Reduction
    ) -> None:
        """Declare the gradients. All processes do so in the same order.

        Args:
            arrays: the exchanges of the front end.
            names: the name of the parameter of each gradient.
            forms: the type and the shape of each.
            reduction: how they are combined.

        Raises:
            SpecError: a gradient has a type that cannot be exchanged, or they cannot be combined in this way.
        """
        self._arrays, self._forms, self._reduction = arrays, forms, reduction
        # Several models of a script may have parameters of the same names.
        number = next(_steps)
        prefix = f"optimizer {number}/gradient" if number else "gradient"
        self._names = [f"{prefix}/{name}" if name else prefix for name in names]
        for name, (dtype, _) in zip(self._names, forms, strict=True):
            _check_type(dtype, name, TYPES)
        self._declare()

    def _declare(self) -> None:
        """Declare the tensors of this session."""
        self._session, whole = session(), is_whole(self._reduction, rule_of(self._reduction, session().size))
        every = [k for k, (_, shape) in enumerate(self._forms) if 0 not in shape]
        self._groups: list[tuple[list[int], Tensor]] = []
        for group in [every] if whole and every else self._grouped(every):
            name = " to ".join(dict.fromkeys((self._names[group[0]], self._names[group[-1]])))
            dtypes = {self._forms[k][0].name for k in group}
            dtype = dtypes.pop() if len(dtypes) == 1 else "float64" if "float64" in dtypes else "float32"
            shapes = tuple(self._forms[k][1] for k in group)
            declaration = Declaration(name, dtype, shapes, self._reduction, len(group) > 1)
            self._groups.append((group, self._arrays.declare(declaration)))

    def _grouped(self, every: Sequence[int]) -> Iterator[list[int]]:
        """Return gradients of one type together, up to the size of a partition, the last ones first."""
        most, groups = session().partition, dict[str, list[int]]()
        sizes = [dtype.itemsize * prod(shape) for dtype, shape in self._forms]
        for k in reversed(every):
            name = self._forms[k][0].name
            group = groups.setdefault(name, [])
            if group and sum(sizes[each] for each in group) + sizes[k] > most:
                yield group
                group = groups[name] = []
            group.append(k)
        yield from filter(None, groups.values())

    def combine(self, gradients: Sequence[ArrayLike]) -> list[NDArray[Any]]:
        """Return the combined gradients of all processes, as new arrays; this ends a step.

        Args:
            gradients: the gradient of this process for each name, of its type and shape.

        Raises:
            RunError: a process has ended or failed; the message names it and the tensor.
        """
        current = session()
        if self._session is not current:
            self._declare()
        results: list[NDArray[Any]] = [np.empty(shape, dtype) for dtype, shape in self._forms]
        begun = []
        for group, tensor in self._groups:
            dtype = tensor.declaration.dtype
            # Gradients of several types are combined in one that holds all of them.
            same = all(self._forms[k][0].name == dtype for k in group)
            sources = [np.asarray(gradients[k], None if same else dtype, order="C") for k in group]
            targets = [results[k] if same else np.empty(results[k].shape, dtype) for k in group]
            exchange = current.start(tensor, [*map(bytes_of, sources)], [*map(bytes_of, targets)])
            begun.append((group, exchange, targets))
        for group, exchange, targets in begun:
            current.wait(exchange)
            for k, target in zip(group, targets, strict=True):
                if target is not results[k]:
                    results[k][...] = target
        current.step()
        return results


def bytes_of(array: NDArray[Any]) -> Bytes:
    """Return the memory of an array whose elements are in a row."""
    return array.reshape(-1).view(np.uint8)


def _called(name: str | None) -> str:
    """Return what messages call an array."""
    return f"array '{name}'" if name else "an array without a name"


def _check_type(dtype: np.dtype[Any], name: str | None, types: Sequence[str]) -> None:
    if dtype.name not in types:
        raise SpecError(f"{_called(name)} is {dtype}, which cannot be exchanged: use one of {', '.join(types)}")


def copied(array: ArrayLike, name: str | None, types: Sequence[str] = TYPES) -> NDArray[Any]:
    """Return a copy of an array, with its elements in a row in the order of this processor.

    Raises:
        SpecError: it is no array of one of these types.
    """
    what = _called(name)
    try:
        found = np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SpecError(f"{what} is no array of numbers: {error}") from error
    if found.dtype.hasobject:
        raise SpecError(f"{what} is no array of numbers: {array!r:.50}")
    if isinstance(array, np.ma.MaskedArray):
        raise SpecError(f"{what} has a mask, and exchanges have none: use filled()")
    _check_type(found.dtype, name, types)
    return np.array(found, dtype=found.dtype.newbyteorder("="), order="C")


@messages()
def _join(timeout: float) -> Session:
    ancestry = Ancestry()
    if PLAN in ancestry.own([PLAN, OWN_RANK]):
        return join_launch(timeout, Copies())
    if (task := ancestry.task()) is not None:
        return join_task(task, timeout, Copies())
    if ancestry.parent is not None:
        raise LaunchError(f"{ancestry.relation}, and nothing says to which others it belongs: {INDEPENDENT}")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise LaunchError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, as torchrun sets it, whose processes only hpcps.torch joins: "
            f"start the script with `hpcps launch` or mpirun; {INDEPENDENT}"
        )
    return join_nobody(timeout, Copies())
