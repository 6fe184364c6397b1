"""Arrays of numpy and tensors of torch: conversion, and the few operations on both; imports torch only for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Vector


def is_tensor(values: Any) -> bool:
    """Return whether values are a tensor of torch."""
    return hasattr(values, "detach")


def aligned(values: Any) -> Vector:
    """Return values as contiguous float32 where they are: themselves, or a copy.

    Kernels need aligned arrays. Other processes' buffers are aligned; parts of files, for example, are copied.
    """
    if is_tensor(values):
        return values.detach().float().contiguous()  # type: ignore[no-any-return]
    return np.require(values, np.float32, ["C", "A"])


def empty(shape: tuple[int, ...], example: Any = None) -> Vector:
    """Return a float32 array, or a tensor on the device of an example; contents unspecified."""
    if is_tensor(example):
        import torch

        return example.new_empty(shape, dtype=torch.float32)  # type: ignore[no-any-return]
    return np.empty(shape, np.float32)


def on_host(values: Any) -> Any:
    """Return an array of numpy: itself, or a copy of a tensor."""
    return values.detach().cpu().numpy() if is_tensor(values) else values


def overlap(left: Any, right: Any) -> bool:
    """Return whether two vectors, both arrays or both tensors, may share memory."""
    if is_tensor(left):
        return bool(left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr())
    return bool(np.may_share_memory(left, right))


def take(values: Any, indices: NDArray[np.int64]) -> Any:
    """Return some elements of a vector `[d]` on the host."""
    if is_tensor(values):
        import torch

        return on_host(values[torch.from_numpy(indices).to(values.device)])
    return values[indices]


def as_floats(values: Any, dimensions: int, name: str) -> Vector:
    """Return values as float32 where they are if that is the memory of a device, and else as `as_numpy` does.

    Raises:
        ValueError: see `as_numpy`.
    """
    if not is_tensor(values) or values.device.type == "cpu" or values.is_complex() or values.ndim != dimensions:
        return as_numpy(values, dimensions, name)
    if values.element_size() > 4 and bool((values.float().isinf() & values.isfinite()).any()):
        return as_numpy(values, dimensions, name)  # raises, and says where
    return aligned(values)


def as_numpy(values: Any, dimensions: int, name: str) -> Vector:
    """Return values as a contiguous float32 array of numpy.

    Args:
        values: a numpy array, a torch tensor on any device, or nested lists.
        dimensions: the number of dimensions that it must have.
        name: its name in messages.

    Raises:
        ValueError: it has another number of dimensions, holds something other than numbers, or numbers beyond float32.
    """
    if is_tensor(values):
        values = values.detach().cpu()
        narrow = values.is_floating_point() and values.element_size() < 4  # numpy has no bfloat16
        values = (values.float() if narrow else values).numpy()
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        what = "its rows have different lengths" if "inhomogeneous" in str(error) else str(error)
        raise ValueError(f"{name} cannot be read as numbers: {what}") from error
    if given.dtype.kind not in "fiub":
        what = {"c": "they are complex", "O": "some are None, other objects, or integers beyond 64 bits"}.get(
            given.dtype.kind, "they are text"
        )
        raise ValueError(f"{name} cannot be read as numbers: {what}")
    if given.ndim != dimensions:
        shape = "[n, d]" if dimensions == 2 else "[d]"
        raise ValueError(f"{name} must have the shape {shape}, not {list(given.shape)}")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(given, np.float32)
    if given.dtype.kind == "f" and given.dtype.itemsize > 4 and (beyond := np.isinf(array) & np.isfinite(given)).any():
        place = tuple(map(int, np.argwhere(beyond)[0]))
        raise ValueError(f"{name}{list(place)} is {given[place]:.3g}, beyond the range of float32")
    return array


def like(example: Any, values: Vector) -> Any:
    """Return values in the library, type and device of an example; float32 for one of integers."""
    if is_tensor(values):
        return values.to(example.dtype) if example.is_floating_point() else values  # type: ignore[attr-defined]
    if is_tensor(example):
        tensor = example if example.is_floating_point() else example.float()
        return tensor.new_tensor(values)
    return values.astype(np.asarray(example).dtype) if np.asarray(example).dtype.kind == "f" else values
