"""Notices changes of gradients that torch does not count: samples of their values, and their memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

_PIECES, _PIECE = 8, 1 << 10
"""Where a tensor is longer than all pieces, this number of pieces is compared, of this number of bytes each."""

State = tuple[Tensor, int, int, tuple[bytes, ...]]
"""A gradient, its version, the address of its values, and a sample of them."""


def state_of(gradient: Tensor) -> State:
    """Return what a gradient is now. A change of a value outside of the sample is not seen, nor one on a device."""
    return gradient, gradient._version, *_memory(gradient)


def is_unchanged(gradient: Tensor | None, state: State) -> bool:
    """Return whether a parameter has the gradient of a state, with the same values in the same memory."""
    was, version, address, sample = state
    return gradient is was and was._version == version and _memory(was) == (address, sample)


def _memory(gradient: Tensor) -> tuple[int, tuple[bytes, ...]]:
    """Return the address of the values, and a sample of them."""
    values = gradient if gradient.layout is torch.strided else gradient._values()
    return values.data_ptr(), _sample(values)


def _sample(tensor: Tensor) -> tuple[bytes, ...]:
    """Return pieces of the values; without any of a tensor on a device."""
    if tensor.device.type != "cpu":
        return ()
    if not _is_dense(tuple(tensor.shape), tensor.stride()):
        tensor = tensor.detach().contiguous()
    address, size = tensor.data_ptr(), tensor.nbytes
    if not address:
        return ()
    if size <= _PIECES * _PIECE:
        return (ctypes.string_at(address, size),)
    between = (size - _PIECE) // (_PIECES - 1)
    return tuple([ctypes.string_at(address + k * between, _PIECE) for k in range(_PIECES)])


@lru_cache(maxsize=4096)
def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements of a tensor lie next to each other, in any order of its dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
