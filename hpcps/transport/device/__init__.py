"""Exchange of vectors in the memory of devices, such as GPUs; `cuda` is the device of torch's CUDA builds."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

from hpcps.numerics.layout import Vector
from hpcps.numerics.vectors import Device, DeviceError, on_host
from hpcps.protocol.envelope import Envelope


class DeviceLink:
    """How vectors of this process's device reach its peers.

    Attributes:
        device: the device.
        direct: the ranks to which MPI sends its memory, and from which MPI receives into it; the others get copies on
            the host.
    """

    def __init__(self, device: Device, direct: frozenset[int]) -> None:
        self.device = device
        self.direct = direct
        self._fetched: tuple[Envelope, Vector] | None = None

    def staged(self, envelope: Envelope) -> Vector:
        """Return a copy of a payload on the host; one copy serves all receivers of the envelope."""
        if self._fetched is None or self._fetched[0] is not envelope:
            self._fetched = envelope, on_host(envelope.payload)
        return self._fetched[1]


VARIABLE = "HPCPS_DEVICE"
"""The environment variable that names another device than torch's CUDA: `module:function`, which returns a `Device`."""

_DRIVER = "/dev/nvidiactl"
_CUDA = "hpcps.transport.device.cuda:open_device"


def absence() -> str:
    """Return why this process can have no device; empty if only `open_device` can tell. Nothing is loaded."""
    if VARIABLE in os.environ:
        return ""
    if not os.path.exists(_DRIVER):
        return "there is no NVIDIA driver"
    return "" if find_spec("torch") else "torch is not installed"


def open_device() -> Device:
    """Return the device of this process.

    Raises:
        DeviceError: there is none.
    """
    if reason := absence():
        raise DeviceError(reason)
    module, _, function = os.environ.get(VARIABLE, _CUDA).partition(":")
    try:
        device = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"{module}:{function}: {error}") from error
    assert isinstance(device, Device), f"{module}:{function} returns no Device"
    return device
