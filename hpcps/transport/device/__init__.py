"""Exchange of vectors in the memory of devices, such as GPUs.

- `cuda`: the device of torch's CUDA builds, with memory of the driver that other processes can map
- `driver`: the functions of the driver for that
- `link`: what a transport needs to send and receive such vectors
- `opening`: opens the device of a process
- `trial`: a program that finds out whether another process can read the memory
"""

from hpcps.transport.device.link import DeviceLink
from hpcps.transport.device.opening import absence, open_device

__all__ = ["DeviceLink", "absence", "open_device"]
