"""`python -m mpi4py -m hpcps.launch.doctor.ranks FILE SECONDS [device]`: two ranks; rank 0 writes the result.

With `device`, rank 0 sends memory of its device, as runs allocate it, to rank 1, which sends it back. An MPI library
that is not CUDA-aware reads a device pointer as a host pointer, and the process crashes: then the file has no result.
After SECONDS a rank ends itself, also where no launcher ends it any more.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.launch.dev_shm import FOLDER
from hpcps.launch.doctor.child import library_path, library_version

_BYTES = 2**20
_CUDA = 0
"""`MPIX_GPU_SUPPORT_CUDA` of MPICH."""


def stated_support() -> dict[str, bool]:
    """Return what the MPI library states about CUDA, by the function that states it."""
    path = library_path()
    library = ctypes.CDLL(path or None)
    stated = {}
    if hasattr(library, "MPIX_Query_cuda_support"):
        stated["MPIX_Query_cuda_support"] = bool(library.MPIX_Query_cuda_support())
    if hasattr(library, "MPIX_GPU_query_support"):
        supported = ctypes.c_int()
        if library.MPIX_GPU_query_support(_CUDA, ctypes.byref(supported)) == 0:
            stated["MPIX_GPU_query_support"] = bool(supported.value)
    return stated


def pages_of_shm() -> dict[str, int]:
    """Return the bytes of each file in `/dev/shm` that this process has mapped: only pages that are in memory."""
    library, found = ctypes.CDLL(None, use_errno=True), dict[str, int]()
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, device, inode, *path = line.split()
        if not path or not path[0].startswith(f"{FOLDER}/"):
            continue
        start, stop = (int(address, 16) for address in addresses.split("-"))
        resident = (ctypes.c_ubyte * ((stop - start) // mmap.PAGESIZE))()
        if library.mincore(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), resident) == 0:
            file = f"{device} {inode}"
            found[file] = found.get(file, 0) + mmap.PAGESIZE * sum(page & 1 for page in resident)
    return found


def shm_of_each(communicator: Any) -> float:
    """Return the bytes of `/dev/shm` that each rank takes; all ranks call this."""
    files: dict[str, int] = {}
    for mapped in communicator.allgather(pages_of_shm()):
        files |= {file: max(size, files.get(file, 0)) for file, size in mapped.items()}
    communicator.barrier()  # no rank ends before all have looked
    return sum(files.values()) / int(communicator.Get_size())


def exchange_vectors(communicator: Any) -> bool | str:
    """Send a vector of the device as a run does; return whether it came back unchanged, or why there is no device."""
    from hpcps.numerics.vectors import DeviceError
    from hpcps.transport.device import open_device

    try:
        device = open_device()
    except DeviceError as error:
        return str(error)
    values = np.arange(_BYTES // 4, dtype=np.float32)
    mine, back = device.allocate(len(values)), device.allocate(len(values))
    device.copy(values, mine)
    device.copy(0 * values, back)
    device.finish()
    other = 1 - communicator.Get_rank()
    if communicator.Get_rank() == 0:
        communicator.Send(mine, other)
        communicator.Recv(back, other)
    else:
        communicator.Recv(back, other)
        communicator.Send(back, other)
    return device.fetch(back).tobytes() == values.tobytes()


def main(file: str, seconds: str, mode: str = "") -> None:
    """Take part in the launch of a pair."""
    signal.alarm(int(seconds) + 1)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    found: dict[str, Any] = {"size": world.Get_size(), "library": library_version()}
    if world.Get_size() == 2:
        # A message in each direction shows that the ranks reach each other.
        found["exchanged"] = world.sendrecv(world.Get_rank(), 1 - world.Get_rank()) == 1 - world.Get_rank()
        found["shm"] = shm_of_each(world)
        if mode == "device":
            found["device"] = exchange_vectors(world)
    if world.Get_rank() == 0:
        Path(file).write_text(json.dumps(found), encoding="utf-8")
        if not mode:
            found["stated"] = stated_support()
            Path(file).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
