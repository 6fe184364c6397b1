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
        ValueError: it has another number of dimensions, or holds something other than numbers.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values if values.is_complex() else values.float()).numpy()
    if np.iscomplexobj(values):
        raise ValueError(f"{name} cannot be read as numbers: they are complex")
    try:
        array = np.ascontiguousarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be read as numbers: {error}") from error
    if np.ndim(values) != dimensions:
        shape = "[n, d]" if dimensions == 2 else "[d]"
        raise ValueError(f"{name} must have the shape {shape}, not {list(np.shape(values))}")
    return array


def like(example: Any, values: Vector) -> Any:
    """Return values in the library, type and device of an example; float32 for one of integers."""
    if hasattr(example, "new_tensor"):
        tensor = example if example.is_floating_point() else example.float()
        return tensor.new_tensor(values)
    return values.astype(np.asarray(example).dtype) if np.asarray(example).dtype.kind == "f" else values
