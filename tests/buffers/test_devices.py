"""What every device does: vectors that take the operators of arrays, and a queue of its own."""

import gc

import late_device
import numpy as np
import pytest
import torch

from hpcps.numerics.vectors import copy, finite, on_host, on_memory, to_device


@pytest.fixture(params=[late_device.open_device, late_device.open_tensors])
def device(request):
    return request.param()


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
    assert to_device(there, device) is there
    assert (on_host(to_device(mixed, device)) == mixed).all()
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


@pytest.mark.thorough
def test_memory_is_used_again(device):
    borrowed = device.borrow(900)
    where = device.pointer(borrowed.memory)
    part = borrowed[100:200]
    del borrowed
    gc.collect()
    assert device.pointer(device.borrow(900).memory) != where, "a part of it is still in use"
    del part
    gc.collect()
    assert device.pointer(device.borrow(800).memory) == where


def test_late_work_is_poison_until_it_is_waited_for(device):
    there, result = device.allocate(10), device.allocate(10)
    there[:] = values(10)
    np.add(there, there, out=result)
    assert np.isnan(late_device.array(result.memory)).all()
    mark = device.record()
    there[:] = 0
    device.wait(mark)
    assert result.memory.tolist() == (2 * values(10)).tolist(), "what was asked later is later"
    device.finish()
    assert not there.memory.any()


@pytest.mark.thorough
def test_memory_is_not_lent_again_before_the_work_on_it_is_over(device):
    """A library that does not know the queue, such as MPI, may write to what it gets."""
    borrowed, kept = device.borrow(10), device.allocate(10)
    borrowed[:] = values(10)
    kept[:] = borrowed
    del borrowed
    gc.collect()
    device.borrow(10).memory[:] = -1
    assert (on_host(kept) == values(10)).all()
