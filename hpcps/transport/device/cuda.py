"""The GPU that torch uses, with a stream of its own for the vectors of a role."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcps.numerics.device import ready
from hpcps.numerics.layout import Vector
from hpcps.numerics.vectors import Device, DeviceError, DeviceVector
from hpcps.transport.device.driver import HANDLE_BYTES, Driver

T = TypeVar("T")

_ADDRESS = struct.Struct(f"<{HANDLE_BYTES}sQQ")
"""The handle of an allocation, the first byte in it, and the number of bytes."""

View = Callable[[int, int], Tensor]
"""Returns the float32 tensor `[n]` at an address; its second argument is n."""


@dataclass
class _Allocation:
    """Memory of this process, and whether it is in use."""

    pointer: int
    values: Tensor
    taken: bool = True
    handle: bytes = b""


class CudaDevice(Device):
    """A GPU.

    All work on vectors is work of one stream. Copies from and to tensors of torch, such as the parameters of a network,
    wait for torch's current stream, and that one for them; no other stream waits.
    """

    has_tensors = True

    def __init__(self, device: torch.device, driver: Driver, view: View) -> None:
        """Take a stream.

        Args:
            device: the GPU.
            driver: allocates and maps its memory.
            view: makes tensors of such memory.
        """
        super().__init__()
        self._device = device
        self._driver = driver
        self._view = view
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._allocations: list[_Allocation] = []
        self._mapped: dict[tuple[int, bytes], int] = {}

    @property
    def name(self) -> str:
        """See `Device.name`."""
        return str(self._device)

    def allocate(self, size: int) -> DeviceVector:
        """See `Device.allocate`."""
        fitting = [each for each in self._allocations if not each.taken and len(each.values) >= size]
        found = min(fitting, key=lambda each: len(each.values), default=None)
        if found is None:
            pointer, bytes_ = self._driver.allocate(4 * size)
            found = _Allocation(pointer, self._view(pointer, bytes_ // 4))
            self._allocations.append(found)
        found.taken = True
        return DeviceVector(self, found.values[:size])

    def recycle(self) -> None:
        """See `Device.recycle`."""
        super().recycle()
        for each in self._allocations:
            each.taken = False

    def export(self, vector: DeviceVector) -> bytes:
        """See `Device.export`."""
        pointer = self.pointer(vector.memory)
        for each in self._allocations:
            start = pointer - each.pointer
            if 0 <= start <= start + vector.nbytes <= 4 * len(each.values):
                each.handle = each.handle or self._driver.handle(each.pointer)
                return _ADDRESS.pack(each.handle, start, vector.nbytes)
        raise DeviceError("the vector is not memory of this process")

    def map(self, owner: int, address: bytes) -> DeviceVector:
        """See `Device.map`; an allocation is mapped once, and stays mapped until this process ends."""
        if len(address) != _ADDRESS.size:
            raise DeviceError(f"{len(address)} bytes are no address, which has {_ADDRESS.size}")
        handle, start, size = _ADDRESS.unpack(address)
        if start % 4 or size % 4:
            raise DeviceError(f"bytes {start} to {start + size} are no float32")
        # Another process may get the same handle later.
        if (owner, handle) not in self._mapped:
            self._mapped[owner, handle] = self._driver.open(handle)
        return DeviceVector(self, self._view(self._mapped[owner, handle] + start, size // 4))

    def copy(self, source: Any, out: Any) -> None:
        """See `Device.copy`."""
        source = torch.from_numpy(np.array(source)) if isinstance(source, np.ndarray) else source
        there, here = (each.memory if isinstance(each, DeviceVector) else each.detach() for each in (source, out))
        foreign = not (isinstance(source, DeviceVector) and isinstance(out, DeviceVector))
        caller = torch.cuda.current_stream(self._device)
        if foreign:
            self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            here.copy_(there)
        if foreign:
            caller.wait_stream(self._stream)

    def enqueue(self, work: Callable[..., None], out: DeviceVector, *sources: Any) -> None:
        """See `Device.enqueue`."""
        self.compute(work, out, *sources)

    def compute(self, work: Callable[..., T], *vectors: DeviceVector) -> T:
        """See `Device.compute`."""
        with torch.cuda.stream(self._stream):
            return work(*(vector.memory for vector in vectors))

    def fetch(self, vector: DeviceVector) -> Vector:
        """See `Device.fetch`."""
        with torch.cuda.stream(self._stream):
            try:
                host = torch.empty(vector.size, dtype=torch.float32, pin_memory=True)
            except RuntimeError:  # memory that can be pinned may be limited
                host = torch.empty(vector.size, dtype=torch.float32)
            host.copy_(vector.memory, non_blocking=True)
        self.finish()
        values: Vector = host.numpy()
        return values

    def record(self) -> torch.cuda.Event:
        """See `Device.record`; whoever waits for the mark sleeps."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, mark: Any) -> None:
        """See `Device.wait`."""
        mark.synchronize()

    def pointer(self, memory: Tensor) -> int:
        """See `Device.pointer`."""
        return memory.data_ptr()


class _Raw:
    """Memory at an address, for torch."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "<f4", "data": (pointer, False), "version": 3}


def open_device() -> CudaDevice:
    """Return torch's current GPU.

    Raises:
        DeviceError: torch sees none, or it or Triton's kernels do not work.
    """
    if not torch.cuda.is_available():
        raise DeviceError("torch sees no GPU")
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        # Makes the context of the GPU current in this thread, which the driver needs.
        torch.zeros(1, device=device)
        driver = Driver()
    except RuntimeError as error:
        raise DeviceError((str(error).splitlines() or [type(error).__name__])[0]) from error
    if not ready(str(device)):
        raise DeviceError(f"Triton's kernels do not work on {device}")
    return CudaDevice(device, driver, partial(_view, device))


def _view(device: torch.device, pointer: int, size: int) -> Tensor:
    """Return the float32 tensor `[size]` at an address.

    Raises:
        DeviceError: torch would copy it, because it is in the memory of another GPU.
    """
    tensor = torch.as_tensor(_Raw(pointer, size), device=device)
    if tensor.data_ptr() != pointer:
        raise DeviceError(f"the memory is not that of {device}")
    return tensor
