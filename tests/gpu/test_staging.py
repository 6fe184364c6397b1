"""Copies through two buffers, on a device that makes each copy as late as it may."""

import fake_cuda
import pytest
import torch
from fake_cuda import Late

from hpcps.training.pytorch.device import Gpu
from hpcps.training.pytorch.staging import CHUNK as BYTES
from hpcps.training.pytorch.staging import Staging, UnpinnedCopies

CHUNK = 16
"""float32 elements of a buffer."""
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7, 8 * CHUNK + 1]


def staging(device):
    return Staging([torch.empty(4 * CHUNK, dtype=torch.uint8) for _ in range(2)], device)


def values(size, start=1.0):
    return torch.arange(start, start + size)


@pytest.mark.parametrize("size", SIZES)
def test_what_goes_to_the_device_gets_there(size):
    device, source, out = Late(), values(size), torch.zeros(size)
    carrier = staging(device)
    carrier.to_device(source, out)
    source.fill_(-1)  # the caller's again
    device.work()
    assert torch.equal(out, values(size))
    assert len(device.asked) == -(-size // CHUNK)


@pytest.mark.parametrize("size", SIZES)
def test_what_comes_to_the_host_is_there(size):
    device, out = Late(), torch.zeros(size)
    staging(device).to_host(values(size), out)
    assert torch.equal(out, values(size))
    assert len(device.asked) == -(-size // CHUNK)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (CHUNK, 3, 2 * CHUNK + 1), SIZES])
def test_many_transfers_one_after_another_do_not_meet_in_a_buffer(sizes):
    device, outs, backs = Late(), [], []
    carrier = staging(device)
    for number, size in enumerate(sizes):
        outs.append(torch.zeros(size))
        carrier.to_device(values(size, 1000.0 * number), outs[-1])
        back = torch.zeros(size)
        carrier.to_host(values(size, -1000.0 * number), back)
        backs.append(back)
    device.work()
    for number, (out, back, size) in enumerate(zip(outs, backs, sizes, strict=True)):
        assert torch.equal(out, values(size, 1000.0 * number))
        assert torch.equal(back, values(size, -1000.0 * number))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_any_type_shape_and_strides_of_the_host(dtype):
    source = torch.arange(2 * 3 * 5 * 7).reshape(2, 5, 7, 3).permute(0, 3, 1, 2).to(dtype)
    assert not source.is_contiguous()
    device, out, back = Late(), torch.zeros(source.shape, dtype=dtype), torch.zeros(source.shape, dtype=dtype)
    carrier = staging(device)
    carrier.to_device(source, out)
    device.work()
    assert torch.equal(out, source)
    carrier.to_host(out, back)
    assert torch.equal(back, source)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("size", [0, 1, BYTES // 4 - 1, BYTES // 4, BYTES // 4 + 1, 3 * BYTES // 4 + 7])
def test_a_gpu_gets_and_gives_back_what_was_sent(size):
    device = Gpu(torch.device("cuda", 0))
    assert isinstance(device.carrier, Staging)
    with device.in_order():
        on_device = [device.from_host(values(size, start)) for start in (1.0, 2.0, 3.0)]
        for start, there in zip((1.0, 2.0, 3.0), on_device, strict=True):
            back = torch.zeros(size)
            device.carrier.to_host(there, back)
            assert torch.equal(back, values(size, start))


def test_without_pinned_memory_copies_are_plain_and_that_is_said_once(monkeypatch, capfd):
    """The memory of the host that can be pinned may be limited, or used up by others."""

    def refuse(*shape, pin_memory=False, **more):
        raise RuntimeError("CUDA error: out of memory\nCompile with")

    fake_cuda.install(monkeypatch)
    monkeypatch.setattr(torch, "empty", refuse)
    device = Gpu(torch.device("cuda", 0))
    assert isinstance(device.carrier, UnpinnedCopies)
    assert isinstance(device.for_other_thread().carrier, UnpinnedCopies)
    said = "hpcps: copies from and to cuda:0 go without pinned memory, which is slower: CUDA error: out of memory\n"
    assert capfd.readouterr().err == said
    source, out = values(5), torch.zeros(5)
    device.carrier.to_device(source, out)
    assert torch.equal(out, source)
