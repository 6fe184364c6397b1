"""Exchange of vectors in the memory of devices, such as GPUs.

- `cuda`: the device of torch's CUDA builds
- `link`: what a transport needs to send and receive such vectors
- `opening`: opens the device of a process
"""

from hpcps.transport.device.link import DeviceLink
from hpcps.transport.device.opening import absence, open_device

__all__ = ["DeviceLink", "absence", "open_device"]
