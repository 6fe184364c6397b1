"""`python probe.py [CONTROL]`: make a CUDA context on the first GPU that is visible; else say why that fails.

With CONTROL, the control program of an MPS daemon, that also has to be in use then: CUDA goes on without it if it does
not find it. All this in a process of its own, as a driver that does not like what it finds may also hang or crash.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys


def main(control: str = "") -> None:
    """Try it; the last line on stderr says what is wrong."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(str(error))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _check(cuda, "cuInit", 0)
    _check(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _check(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
    if control:
        servers = subprocess.run([control], input="get_server_list\n", capture_output=True, text=True).stdout
        if not servers.strip():
            sys.exit("CUDA does not use it")


def _check(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    status = getattr(cuda, function)(*arguments)
    if status:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        sys.exit(f"{function}: {name.value.decode() if name.value else status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
