"""The real `CudaDevice` without a GPU: its driver is compiled from `memory_of_a_driver.c`, its tensors are the host's.

Streams do their work at once, so this shows nothing about waiting: `late_device` does.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from hpcps.transport.device.cuda import CudaDevice
from hpcps.transport.device.driver import Driver

SOURCE = Path(__file__).with_name("memory_of_a_driver.c")
waits = []
"""What waited for what: streams, and the host for events."""


class Stream:
    def __init__(self, device=None):
        self.device = device

    def wait_stream(self, other):
        waits.append((self, other))


class Event:
    def __init__(self, blocking):
        assert blocking

    def record(self, stream):
        self.stream = stream

    def synchronize(self):
        waits.append(("host", self.stream))


CURRENT = [Stream()]


@contextmanager
def stream(entered):
    CURRENT.append(entered)
    try:
        yield
    finally:
        CURRENT.pop()


def compiler():
    return shutil.which("cc")


def library():
    """Compile the driver; return its path, which other processes use, too."""
    path = os.environ.get("CUDA_ON_HOST")
    if path is None:
        path = os.environ["CUDA_ON_HOST"] = os.path.join(tempfile.mkdtemp(), "libcuda.so.1")
        subprocess.run([compiler(), "-shared", "-fPIC", "-Wall", "-Werror", "-o", path, str(SOURCE)], check=True)
    return path


def view(pointer, size):
    array = (ctypes.c_float * size).from_address(pointer)
    return torch.from_numpy(np.frombuffer(array, np.float32))


def open_device():
    fakes = {"Stream": Stream, "Event": Event, "stream": stream, "current_stream": lambda device: CURRENT[-1]}
    mock.patch.multiple(torch.cuda, **fakes).start()
    empty = torch.empty
    torch.empty = lambda *shape, pin_memory=False, **more: empty(*shape, **more)
    return CudaDevice(torch.device("cpu"), Driver(library()), view)


def close(device):
    """Let no other process open the memory of any device any more."""
    ctypes.CDLL(library()).forget()
