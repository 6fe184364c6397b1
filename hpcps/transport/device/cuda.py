"""The GPU that torch uses, with a stream of its own for the vectors of a role."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcps.numerics.layout import Vector
from hpcps.numerics.vectors import Device, DeviceError, DeviceVector

T = TypeVar("T")


class CudaDevice(Device):
    """A GPU.

    All work on vectors is work of one stream. Copies from and to tensors of torch, such as the parameters of a network,
    wait for torch's current stream, and that one for them; no other stream waits.
    """

    def __init__(self, device: torch.device) -> None:
        """Take a stream of a GPU."""
        super().__init__()
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def name(self) -> str:
        return str(self._device)

    def allocate(self, size: int) -> DeviceVector:
        try:
            with torch.cuda.stream(self._stream):
                return DeviceVector(self, torch.empty(size, dtype=torch.float32, device=self._device))
        except torch.OutOfMemoryError as error:
            raise DeviceError(str(error).splitlines()[0]) from error

    def copy(self, source: Any, out: Any) -> None:
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
        self.compute(work, out, *sources)

    def compute(self, work: Callable[..., T], *vectors: DeviceVector) -> T:
        with torch.cuda.stream(self._stream):
            return work(*(vector.memory for vector in vectors))

    def fetch(self, vector: DeviceVector) -> Vector:
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
        """Return a mark of the present end of the queue; a process that waits for it sleeps."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def pointer(self, memory: Tensor) -> int:
        return memory.data_ptr()


def open_device() -> CudaDevice:
    """Return torch's current GPU.

    Raises:
        DeviceError: torch sees none, or it does not work.
    """
    if not torch.cuda.is_available():
        raise DeviceError("torch sees no GPU")
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        torch.zeros(1, device=device)
    except RuntimeError as error:
        raise DeviceError((str(error).splitlines() or [type(error).__name__])[0]) from error
    return CudaDevice(device)
