"""Conversion of numpy arrays and torch tensors to float32 numpy arrays and back, without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcps.numerics.layout import Vector


def as_numpy(values: Any, dimensions: int, name: str) -> Vector:
    """Return values as a contiguous float32 array of numpy.

    Args:
        values: a numpy array, a torch tensor on any device, or nested lists.
        dimensions: the number of dimensions that it must have.
        name: its name in messages.

    Raises:
        ValueError: it has another number of dimensions, holds something other than numbers, or numbers beyond float32.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        narrow = values.is_floating_point() and values.element_size() < 4  # numpy has no bfloat16
        values = (values.float() if narrow else values).numpy()
    try:
        given = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as numbers: {error}") from error
    if given.dtype.kind not in "fiub":
        what = {"c": "they are complex", "O": "some are None or other objects"}.get(given.dtype.kind, "they are text")
        raise ValueError(f"{name} cannot be read as numbers: {what}")
    if given.ndim != dimensions:
        shape = "[n, d]" if dimensions == 2 else "[d]"
        raise ValueError(f"{name} must have the shape {shape}, not {list(given.shape)}")
    with np.errstate(over="ignore"):
        array = np.ascontiguousarray(given, np.float32)
    if given.dtype.kind == "f" and given.dtype.itemsize > 4 and (beyond := np.isinf(array) & np.isfinite(given)).any():
        place = tuple(map(int, np.argwhere(beyond)[0]))
        raise ValueError(f"{name}{list(place)} is {given[place]:.3g}, beyond the float32 numbers that rules combine")
    return array


def like(example: Any, values: Vector) -> Any:
    """Return values in the library, type and device of an example; float32 for one of integers."""
    if hasattr(example, "new_tensor"):
        tensor = example if example.is_floating_point() else example.float()
        return tensor.new_tensor(values)
    return values.astype(np.asarray(example).dtype) if np.asarray(example).dtype.kind == "f" else values
