"""`python probe.py [CONTROL]`: create a CUDA context on the first visible GPU, or print why that fails.

CONTROL is the control program of an MPS daemon. If it is given, CUDA must also use that daemon; CUDA reports no error
if it does not find the daemon. The probe is a separate process, because the driver may hang or crash.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys


def main(control: str = "") -> None:
    """Test the GPU; the last line on stderr is the error."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(str(error))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(cuda, "cuInit", 0)
    check(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    check(cuda, "cuCtxCreate_v2", ctypes.byref(context), 0, device)
    if control:
        servers = subprocess.run([control], input="get_server_list\n", capture_output=True, text=True).stdout
        if not servers.strip():
            sys.exit("CUDA does not use MPS")


def check(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    """Call a function of the driver; end this process with the name of the error if there is one."""
    status = getattr(cuda, function)(*arguments)
    if status:
        name = ctypes.c_char_p()
        cuda.cuGetErrorName(status, ctypes.byref(name))
        sys.exit(f"{function}: {name.value.decode() if name.value else status}")


if __name__ == "__main__":
    main(*sys.argv[1:])
