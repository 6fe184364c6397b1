"""What every device does: vectors that take the operators of arrays, memory that others map, a queue of its own."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import cuda_on_host
import late_device
import numpy as np
import pytest
import torch

from hpcps.numerics.vectors import DeviceError, copy, edited, finite, on_host, on_memory, placed
from hpcps.transport.device.driver import Driver

HERE = Path(__file__).parent
needs_compiler = pytest.mark.skipif(cuda_on_host.compiler() is None, reason="no C compiler for a stand-in of libcuda")
DEVICES = ["late_device", pytest.param("cuda_on_host", marks=needs_compiler)]


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", torch.empty)
        opened = sys.modules[request.param].open_device()
        yield opened
        sys.modules[request.param].close(opened)
    mock.patch.stopall()


def values(size, start=0.0):
    return np.arange(start, start + size, dtype=np.float32)


def vector(device, array):
    there = device.allocate(len(array))
    there[:] = array
    return there


def test_roles_compute_with_vectors_as_with_arrays(device):
    a, b = values(100), values(100, 0.5) / 3
    there, other, out = vector(device, a), vector(device, b), device.allocate(100)
    out[:] = there
    out -= other
    out *= 0.7
    np.add(there[10:20], other[10:20], out=out[10:20])
    out[90:] = 0
    out[5:6] = float("nan")
    out[6:8] = b[:2]
    here = (a - b) * np.float32(0.7)
    here[10:20] = a[10:20] + b[10:20]
    here[90:], here[5], here[6:8] = 0, np.nan, b[:2]
    assert on_host(out).tobytes() == here.tobytes()
    assert (out.size, out.nbytes, out.shape, len(out[3:7])) == (100, 400, (100,), 4)
    assert finite(there)
    assert not finite(out)
    assert (on_host(there) == a).all(), "it is only read"


def test_values_cross_between_host_and_device(device):
    a = values(50)
    there = vector(device, a)
    a[:] = -1  # the caller's again
    assert (on_host(there) == values(50)).all()
    mixed = np.zeros(50, np.float32)
    np.add(there, np.ones(50, np.float32), out=mixed)
    assert (mixed == values(50, 1.0)).all()
    copy(there[10:], mixed[:40])
    assert (mixed[:40] == values(40, 10.0)).all()
    with edited(there[:5]) as here:
        here *= 2
    assert on_host(there)[:6].tolist() == [0, 2, 4, 6, 8, 5]
    assert placed(there, device) is there
    assert (on_host(placed(mixed, device)) == mixed).all()
    with pytest.raises(TypeError, match=r"on_host\(\) copies it"):
        np.asarray(there)


def test_a_network_exchanges_its_parameters_with_a_vector(device):
    parameters, there = torch.arange(20.0, requires_grad=True), device.allocate(20)
    device.copy(parameters, there)
    with torch.no_grad():
        parameters += 100  # training goes on
    assert (on_host(there) == values(20)).all()
    there[3:4] = 7
    with torch.no_grad():
        device.copy(there, parameters)
    assert parameters.tolist() == [*range(3), 7, *range(4, 20)]


def test_a_computation_gives_the_host_its_result(device):
    there = vector(device, values(10))

    def work(memory):
        total = float(memory.sum())
        memory[:5] = 1
        return total

    assert on_memory(work, there) == 45
    assert on_host(there).tolist() == [1, 1, 1, 1, 1, 5, 6, 7, 8, 9]


def test_memory_is_used_again(device):
    kept = device.allocate(1000)
    lent = vector(device, values(1000))
    borrowed = device.borrow(900)
    where = device.pointer(borrowed.memory)
    part = borrowed[100:200]
    del borrowed
    gc.collect()
    assert device.pointer(device.borrow(900).memory) != where, "a part of it is still in use"
    del part
    gc.collect()
    assert device.pointer(device.borrow(800).memory) == where
    all_of_it = {device.pointer(kept.memory), device.pointer(lent.memory), where}
    device.recycle()
    assert device.pointer(device.allocate(1000).memory) in all_of_it


READ = """
import importlib, sys
device = importlib.import_module(sys.argv[1]).open_device()
there = device.map(int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
print(device.fetch(there).tolist())
try:
    device.map(int(sys.argv[2]), bytes.fromhex(sys.argv[4]))
except Exception as error:
    print(type(error).__name__)
"""


def test_another_process_reads_a_part_of_it(device):
    module = type(device).__module__
    module = module if module == "late_device" else "cuda_on_host"
    there = vector(device, values(1000))
    device.finish()
    command = [sys.executable, "-c", READ, module, str(os.getpid()), device.export(there[500:504]).hex(), "00" * 7]
    read = subprocess.run(command, env={**os.environ, "PYTHONPATH": path()}, capture_output=True, text=True)
    assert read.stdout.split("\n")[:2] == ["[500.0, 501.0, 502.0, 503.0]", "DeviceError"], read.stderr


def path():
    return os.pathsep.join([str(HERE), str(HERE.parents[1])])


@pytest.mark.parametrize("device", [late_device.__name__], indirect=True)
def test_late_work_is_poison_until_it_is_waited_for(device):
    there, result = device.allocate(10), device.allocate(10)
    there[:] = values(10)
    np.add(there, there, out=result)
    assert np.isnan(result.memory).all()
    mark = device.record()
    there[:] = 0
    device.wait(mark)
    assert result.memory.tolist() == (2 * values(10)).tolist(), "what was asked later is later"
    device.finish()
    assert not there.memory.any()


@pytest.mark.parametrize("device", [late_device.__name__], indirect=True)
def test_memory_is_not_lent_again_before_the_work_on_it_is_over(device):
    """A library that does not know the queue, such as MPI, may write to what it gets."""
    borrowed, kept = device.borrow(10), device.allocate(10)
    borrowed[:] = values(10)
    kept[:] = borrowed
    del borrowed
    gc.collect()
    device.borrow(10).memory[:] = -1
    assert (on_host(kept) == values(10)).all()


@needs_compiler
def test_streams_wait_for_each_other_and_for_no_others():
    empty, device = torch.empty, cuda_on_host.open_device()
    try:
        there, network, waits = device.allocate(4), torch.ones(4), cuda_on_host.waits
        trainer, own = cuda_on_host.Stream(), device._stream
        waits.clear()
        with cuda_on_host.stream(trainer):
            device.copy(network, there)
            device.copy(there, network)
        assert waits == [(own, trainer), (trainer, own)] * 2
        waits.clear()
        there[:2] = there[2:]
        on_host(there)
        assert waits == [("host", own)]
    finally:
        cuda_on_host.close(device)
        torch.empty = empty
        mock.patch.stopall()


@needs_compiler
def test_errors_of_the_driver_are_named():
    driver = Driver(cuda_on_host.library())
    with pytest.raises(DeviceError, match="cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_HANDLE"):
        driver.open(bytes([1] * 4 + [0] * 60))
    with pytest.raises(DeviceError, match="cuMemGetAddressRange_v2: CUDA_ERROR_INVALID_VALUE"):
        driver.handle(4096)
    with pytest.raises(DeviceError, match="cannot open shared object"):
        Driver("libno.so")
    pointer, size = driver.allocate(5)  # at least
    assert size == 1 << 21
    with pytest.raises(DeviceError, match="into one block"):
        driver.handle(pointer + 64)
    cuda_on_host.close(driver)
