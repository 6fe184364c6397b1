"""Memory of CUDA's driver, which other processes can map.

It does not come from torch's allocator: that one cuts its memory into pieces, and keeps files for those it shares.
"""

from __future__ import annotations

import ctypes

from hpcps.numerics.vectors import DeviceError

HANDLE_BYTES = 64
"""`CU_IPC_HANDLE_SIZE`."""
_PEERS = 1
"""`CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`: the memory may be that of another GPU."""
GRANULE = 1 << 21
"""Bytes: the driver cuts smaller allocations out of one block, and a handle gives the whole block."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class Driver:
    """The functions of the driver for memory; a context must be current in the calling thread."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """Load the driver.

        Raises:
            DeviceError: it is not there.
        """
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise DeviceError(str(error)) from error
        address, handle, size = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(_Handle), ctypes.c_size_t
        for name, arguments in {
            "cuMemAlloc_v2": [address, size],
            "cuMemGetAddressRange_v2": [address, ctypes.POINTER(size), ctypes.c_uint64],
            "cuIpcGetMemHandle": [handle, ctypes.c_uint64],
            "cuIpcOpenMemHandle_v2": [address, _Handle, ctypes.c_uint],
            "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
        }.items():
            getattr(self._cuda, name).argtypes = arguments

    def allocate(self, size: int) -> tuple[int, int]:
        """Allocate at least `size` bytes; return their address and their number.

        Raises:
            DeviceError: there is no memory left.
        """
        pointer, whole = ctypes.c_uint64(), -(-max(size, 1) // GRANULE) * GRANULE
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), whole)
        return pointer.value, whole

    def handle(self, pointer: int) -> bytes:
        """Return the handle with which another process opens an allocation.

        Raises:
            DeviceError: the driver has none.
        """
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), pointer)
        if base.value != pointer:
            raise DeviceError("the driver has put two allocations into one block")
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), pointer)
        return ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES)

    def open(self, handle: bytes) -> int:
        """Map the allocation of another process; return its address here. The driver unmaps it when this one ends.

        Raises:
            DeviceError: there is no such allocation, or this process cannot reach its GPU.
        """
        pointer = ctypes.c_uint64()
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), _Handle.from_buffer_copy(handle), _PEERS)
        return pointer.value

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._cuda, function)(*arguments)
        if status:
            name = ctypes.c_char_p()
            self._cuda.cuGetErrorName(status, ctypes.byref(name))
            raise DeviceError(f"{function}: {name.value.decode() if name.value else status}")
