"""Opens the device whose memory a process exchanges with others."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

from hpcps.numerics.vectors import Device, DeviceError

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
