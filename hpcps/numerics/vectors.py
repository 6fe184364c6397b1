"""Vectors in the memory of a device, for code that is written for arrays of numpy.

Roles slice, assign, add and subtract flat vectors. A `DeviceVector` takes the same operators and passes them to its
`Device`, which does the work later, in the order in which it was asked. Code that needs the values on the host says so
with `on_host`; code that computes on the memory itself uses `on_memory`. For an array of numpy both do nothing more.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from hpcps.numerics.arrays import is_tensor
from hpcps.numerics.layout import Layout, Mask, Vector

T = TypeVar("T")


class DeviceError(Exception):
    """A device cannot do what it was asked for; the text is the reason, in one line."""


class Device(ABC):
    """A device with memory of its own and one queue of work, which it does in order; asking does not wait for it.

    Memory is tensors of torch, or arrays of numpy.
    """

    def __init__(self) -> None:
        self._spare: list[DeviceVector] = []

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the device for messages, such as `cuda:0`."""

    @abstractmethod
    def allocate(self, size: int) -> DeviceVector:
        """Return a vector of `size` elements, contents unspecified.

        Raises:
            DeviceError: there is no memory left.
        """

    def recycle(self) -> None:
        """Reuse all memory: nobody may use vectors that were allocated before."""
        self._spare = []

    @abstractmethod
    def copy(self, source: Any, out: Any) -> None:
        """Enqueue a copy; each argument is a `DeviceVector`, or a tensor of a framework on this device or the host.

        An array of numpy may be the source; it may be changed as soon as this returns. If a tensor is the source or
        the destination, the queue of the framework sees the copy in its order.
        """

    @abstractmethod
    def enqueue(self, work: Callable[..., None], out: DeviceVector, *sources: Any) -> None:
        """Enqueue `work(out, *sources)` on the memory of `DeviceVector`s; only `out` is written."""

    @abstractmethod
    def compute(self, work: Callable[..., T], *vectors: DeviceVector) -> T:
        """Return `work(*vectors)` on the memory of vectors, in the order of the queue.

        What it returns is for the host; what it writes to the vectors is there when the queue is that far.
        """

    @abstractmethod
    def fetch(self, vector: DeviceVector) -> Vector:
        """Return a copy on the host, which is complete; only the queue of this device was waited for."""

    @abstractmethod
    def record(self) -> object:
        """Return a mark of the present end of the queue."""

    @abstractmethod
    def wait(self, mark: object) -> None:
        """Wait until the device has done all work before a mark."""

    @abstractmethod
    def pointer(self, memory: Any) -> int:
        """Return the address of memory, for a library that takes device pointers."""

    def borrow(self, size: int) -> DeviceVector:
        """Return a vector whose memory is used again once the vector and all its parts are deleted.

        All work on that memory is over when this returns: a library that does not know the queue may write to it.
        """
        fitting = [k for k, spare in enumerate(self._spare) if size <= spare.size <= 2 * size]
        whole = self._spare.pop(fitting[-1]) if fitting else self.allocate(size)
        if fitting:
            self.finish()
        part = DeviceVector(self, whole.memory[:size])
        weakref.finalize(part, self._spare.append, whole).atexit = False
        return part

    def finish(self) -> None:
        """Wait until the device has done all work."""
        self.wait(self.record())


class DeviceVector:
    """A flat float32 vector in the memory of a device.

    Attributes:
        device: the device.
        memory: what its framework calls the memory: a tensor of torch, or an array of numpy for a device whose memory
            the host can address.
    """

    def __init__(self, device: Device, memory: Any, whole: DeviceVector | None = None) -> None:
        """Take some memory `[m]`; as long as the vector is used, so is the vector that it is a part of."""
        self.device = device
        self.memory = memory
        self._whole = whole

    @property
    def size(self) -> int:
        """The number of elements."""
        return len(self.memory)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return 4 * self.size

    @property
    def shape(self) -> tuple[int]:
        """The shape, as that of an array."""
        return (self.size,)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, where: slice) -> DeviceVector:
        return DeviceVector(self.device, self.memory[where], self)

    def __setitem__(self, where: slice, values: Any) -> None:
        part = self[where]
        if isinstance(values, (int, float)):
            self.device.enqueue(lambda out: _fill(out, values), part)
        else:
            assert len(values) == len(part), f"{len(values)} values for {len(part)} elements"
            self.device.copy(values, part)

    def __isub__(self, other: DeviceVector) -> DeviceVector:
        self.device.enqueue(partial(_compute, "subtract"), self, self, other)
        return self

    def __imul__(self, factor: float) -> DeviceVector:
        self.device.enqueue(lambda out, values: _compute("multiply", out, values, float(factor)), self, self)
        return self

    def __array__(self, *arguments: Any, **more: Any) -> Any:
        raise TypeError(f"the vector is in the memory of {self.device.name}: on_host() copies it")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        if ufunc is not np.add or method != "__call__" or out is None or more:
            return NotImplemented
        (sum_,) = out
        there = [to_device(values, self.device) for values in inputs]
        if isinstance(sum_, DeviceVector):
            self.device.enqueue(partial(_compute, "add"), sum_, *there)
        else:
            np.add(*map(on_host, there), out=sum_)
        return sum_

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The vector for MPI; the work on it must be over."""
        pointer = self.device.pointer(self.memory)
        return {"shape": self.shape, "typestr": "<f4", "data": (pointer, False), "version": 3, "strides": None}


def on_host(values: Any) -> Vector:
    """Return values as an array of the host: themselves, or a copy if they are in the memory of a device."""
    array: Vector = values.device.fetch(values) if isinstance(values, DeviceVector) else values
    return array


def empty_like(values: Vector, size: int) -> Vector:
    """Return a vector of `size` elements where `values` are, contents unspecified; see `Device.borrow`."""
    there: Any = values
    if not isinstance(there, DeviceVector):
        return np.empty(size, np.float32)
    return as_vector(there.device.borrow(size) if size else there[:0])


def copied(values: Vector) -> Vector:
    """Return a copy of values where they are."""
    there = empty_like(values, values.size)
    there[:] = values
    return there


def copy(values: Vector, out: Vector) -> None:
    """Copy values into `out`, wherever both are."""
    out[:] = values if isinstance(out, DeviceVector) else on_host(values)


def on_memory(work: Callable[..., T], *vectors: Any) -> T:
    """Return `work(*vectors)` for arrays of numpy, and `work` of the memory of vectors that a device has."""
    if vectors and isinstance(vectors[0], DeviceVector):
        return vectors[0].device.compute(work, *vectors)
    return work(*vectors)


def with_memory(work: Callable[..., T], out: Any, *vectors: Any) -> T:
    """Return `work(out, *vectors)`; if `out` is on a device, of its memory there, to which the vectors are copied.

    A vector that is None is passed on as None.
    """
    if not isinstance(out, DeviceVector):
        return work(out, *vectors)
    given = [vector for vector in vectors if vector is not None]

    def with_absent(out: Any, *memory: Any) -> T:
        present = iter(memory)
        return work(out, *(None if vector is None else next(present) for vector in vectors))

    return out.device.compute(with_absent, out, *(to_device(vector, out.device) for vector in given))


def finite(values: Vector) -> bool:
    """Return whether all values are finite."""
    return on_memory(_finite, values)


def to_device(values: Any, device: Device) -> DeviceVector:
    """Return values in the memory of a device: themselves, or a copy."""
    if isinstance(values, DeviceVector):
        return values
    there = device.borrow(len(values))
    device.copy(values, there)
    return there


def as_vector(vector: DeviceVector) -> Vector:
    """Return a vector of a device for code that is written for arrays; see the module."""
    return cast(Vector, vector)


def pack(layout: Layout, vector: Vector, mask: Mask, out: Vector) -> Vector:
    """Copy the masked blocks of `vector` one after another into `out`; return the filled part of `out`.

    Both may be in the memory of a device.
    """
    part: Any = out[: layout.packed_size(mask)]
    if isinstance(part, DeviceVector):
        part.device.enqueue(partial(_pack, layout, mask), part, vector)
    else:
        _pack(layout, mask, part, vector)
    return part  # type: ignore[no-any-return]


def _pack(layout: Layout, mask: Mask, out: Any, vector: Any) -> None:
    """Copy the masked blocks of an array or a tensor."""
    filled = 0
    for start, stop in layout.runs(mask):
        out[filled : filled + stop - start] = vector[start:stop]
        filled += stop - start


def unpack(layout: Layout, payload: Vector, mask: Mask, out: Vector) -> None:
    """Copy a payload of the masked blocks into their places in `out`; zero the rest of `out`."""
    taken = position = 0
    for start, stop in layout.runs(mask):
        out[position:start] = 0
        out[start:stop] = payload[taken : taken + stop - start]
        taken += stop - start
        position = stop
    out[position:] = 0


def _finite(memory: Any) -> bool:
    return bool(memory.isfinite().all() if is_tensor(memory) else np.isfinite(memory).all())


def _fill(out: Any, value: float) -> None:
    out[:] = value


def _compute(function: str, out: Any, *values: Any) -> None:
    """Write the result of a function of numpy, which torch has too, to an array or a tensor."""
    library: Any = np
    if is_tensor(out):
        import torch as library
    getattr(library, function)(*values, out=out)


def clear_not_finite(layout: Layout, values: Vector) -> Mask:
    """Set the blocks of a vector `[d]` on the host that are not finite to 0; return them `[B]`."""
    cleared: Mask = np.zeros(len(layout.blocks), np.bool_)
    if not np.isfinite(values).all():
        for number, block in enumerate(layout.blocks):
            part = values[block.offset : block.stop]
            if not np.isfinite(part).all():
                part[:], cleared[number] = 0, True
    return cleared
