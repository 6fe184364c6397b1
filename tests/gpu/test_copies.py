"""Copies in chunks through pinned memory, on a device that makes each copy as late as it may."""

import fake_cuda
import pytest
import torch
from fake_cuda import Late

from hpcps.training.pytorch import device as module
from hpcps.training.pytorch.device import CHUNK as BYTES
from hpcps.training.pytorch.device import Gpu

CHUNK = 16
"""float32 elements of a chunk."""
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7, 8 * CHUNK + 1]


@pytest.fixture
def device(monkeypatch):
    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(module, "CHUNK", 4 * CHUNK)
    gpu = Gpu(torch.device("cpu"))
    gpu.late = Late()
    gpu._enqueue_copy, gpu._mark = gpu.late.copy, gpu.late.mark
    return gpu


def values(size, start=1.0):
    return torch.arange(start, start + size)


@pytest.mark.parametrize("size", SIZES)
def test_what_goes_to_the_device_gets_there(device, size):
    source, out = values(size), torch.zeros(size)
    device.to_device(source, out)
    source.fill_(-1)  # the caller's again
    device.late.work()
    assert torch.equal(out, values(size))
    assert len(device.late.asked) == max(1, -(-size // CHUNK))


@pytest.mark.parametrize("size", SIZES)
def test_what_comes_to_the_host_is_there(device, size):
    out = torch.zeros(size)
    device.to_host(values(size), out)
    assert torch.equal(out, values(size))
    assert len(device.late.asked) == max(1, -(-size // CHUNK))


def test_a_chunk_is_fetched_while_the_device_copies_the_next_one(device):
    done, copy, wait = [], device._enqueue_copy, device.late.work
    device._enqueue_copy = lambda source, out: (done.append("copy"), copy(source, out))
    device.late.work = lambda until: (done.append("wait"), wait(until))
    device.to_host(values(3 * CHUNK), torch.zeros(3 * CHUNK))
    assert done == ["copy", "copy", "wait", "copy", "wait", "wait"]


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (CHUNK, 3, 2 * CHUNK + 1), SIZES])
def test_many_transfers_one_after_another_do_not_meet_in_a_buffer(device, sizes):
    outs, backs = [], []
    for number, size in enumerate(sizes):
        outs.append(torch.zeros(size))
        device.to_device(values(size, 1000.0 * number), outs[-1])
        back = torch.zeros(size)
        device.to_host(values(size, -1000.0 * number), back)
        backs.append(back)
    device.late.work()
    for number, (out, back, size) in enumerate(zip(outs, backs, sizes, strict=True)):
        assert torch.equal(out, values(size, 1000.0 * number))
        assert torch.equal(back, values(size, -1000.0 * number))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_any_type_shape_and_strides_of_the_host(device, dtype):
    source = torch.arange(2 * 3 * 5 * 7).reshape(2, 5, 7, 3).permute(0, 3, 1, 2).to(dtype)
    assert not source.is_contiguous()
    out, back = (torch.zeros(source.shape, dtype=dtype) for _ in range(2))
    device.to_device(source, out)
    device.late.work()
    assert torch.equal(out, source)
    device.to_host(out, back)
    assert torch.equal(back, source)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("size", [0, 1, BYTES // 4 - 1, BYTES // 4, BYTES // 4 + 1, 3 * BYTES // 4 + 7])
def test_a_gpu_gets_and_gives_back_what_was_sent(size):
    device = Gpu(torch.device("cuda", 0))
    with device.in_order():
        on_device = [device.from_host(values(size, start)) for start in (1.0, 2.0, 3.0)]
        for start, there in zip((1.0, 2.0, 3.0), on_device, strict=True):
            back = torch.zeros(size)
            device.to_host(there, back)
            assert torch.equal(back, values(size, start))


def test_without_pinned_memory_copies_are_plain_and_that_is_said_once(monkeypatch, capfd):
    """The memory of the host that can be pinned may be limited, or used up by others."""

    def refuse(*shape, pin_memory=False, **more):
        raise RuntimeError("CUDA error: out of memory\nCompile with")

    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(torch, "empty", refuse)
    device = Gpu(torch.device("cuda", 0))
    source, out, back = values(5), torch.zeros(5), torch.zeros(5)
    device.to_device(source, out)
    other = device.for_other_thread()
    with other.in_order():
        other.to_host(out, back)
    assert torch.equal(back, source)
    said = "hpcps: copies from and to cuda:0 go without pinned memory, which is slower: CUDA error: out of memory\n"
    assert capfd.readouterr().err == said
