"""CUDA's driver library, called without a framework.

`python cuda.py [CONTROL]` creates a context on the first visible GPU, or prints why that fails. It needs only Python,
and is a process of its own, because the driver may hang or crash. CONTROL is the control program of an MPS daemon that
CUDA has to use; CUDA reports no error if it does not find the daemon.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys


def create_context() -> ctypes.CDLL:
    """Create a CUDA context on the first visible GPU; return the library.

    Raises:
        OSError: the library cannot be loaded.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
    return cuda


def _call(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of the driver; end this process with the name of the error if there is one."""
    status = getattr(cuda, function)(*arguments)
    if status:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        sys.exit(f"{function}: {name.value.decode() if name.value else status}")


def main(control: str = "") -> None:
    """Try the GPU; the last line on stderr is the error."""
    try:
        create_context()
    except OSError as error:
        sys.exit(str(error))
    if control:
        servers = subprocess.run([control], input="get_server_list\n", capture_output=True, text=True).stdout
        if not servers.strip():
            sys.exit("CUDA does not use MPS")


if __name__ == "__main__":
    main(*sys.argv[1:])
