"""`python -m hpcps.transport.device.trial`: find out whether another process can read memory of the device in place.

It starts itself again with the address of a vector; that process maps the vector and returns a hash of what it read. A
driver may crash or hang on the way, so whoever starts this gives it a deadline. It prints `SEEN`, or why not.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys

import numpy as np

from hpcps.numerics.vectors import DeviceError
from hpcps.transport.device.opening import open_device

SEEN = "another process reads it in place"
_SIZE = 1 << 18
"""Elements of the vector: several pages of any device."""


def show() -> str:
    """Write a vector, have another process read it, and return the result."""
    device = open_device()
    values = np.random.default_rng().random(_SIZE, np.float32)
    vector = device.allocate(_SIZE)
    device.copy(values, vector)
    device.finish()
    # The second half: a vector may be any part of what was allocated.
    address = device.export(vector[_SIZE // 2 :]).hex()
    command = [sys.executable, "-m", "hpcps.transport.device.trial", str(os.getpid()), address]
    reader = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if reader.returncode < 0:
        return f"a process that mapped it was killed by {signal.Signals(-reader.returncode).name}"
    if reader.returncode:
        return f"a process cannot map it: {(reader.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    right = hashlib.sha256(values[_SIZE // 2 :].tobytes()).hexdigest()
    return SEEN if reader.stdout.strip() == right else "a process that mapped it read other values"


def read(owner: int, address: str) -> str:
    """Map a vector of another process; return the hash of its values."""
    device = open_device()
    return hashlib.sha256(device.fetch(device.map(owner, bytes.fromhex(address))).tobytes()).hexdigest()


def main() -> None:
    """Play one of both processes."""
    try:
        print(read(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else show(), flush=True)
    except DeviceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
