"""Access to memory at an address. All kernels take addresses, so that their types do not depend on the arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.layout import Vector

NONE: Any = np.int32(0)


@intrinsic
def _pointer(context: Any, address: Any) -> Any:
    signature = types.CPointer(types.float32)(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def magnitude(context: Any, value: Any) -> Any:
    """Return the bit pattern, without the sign, of a float32: an int32, the larger the value, and largest for NaN."""
    signature = types.int32(types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pattern = builder.bitcast(arguments[0], context.get_value_type(types.int32))
        return builder.and_(pattern, context.get_constant(types.int32, 0x7FFFFFFF))

    return signature, generate


@kernel
def floats(address: int, count: int) -> Vector:
    """Return the `count` float32 at an address as an array."""
    return carray(_pointer(address), (count,))  # type: ignore[no-any-return]


@kernel
def largest(values: Vector) -> Any:
    """Return the largest bit pattern, without signs, of float32 values."""
    found = NONE
    for k in range(len(values)):
        found = max(found, magnitude(values[k]))
    return found


@kernel
def write(values: Vector, start: int, base: int, out: int) -> Any:
    """Write values from element `start` on to the address `out`, added to those at the address `base` if it is not 0.

    Returns:
        The largest bit pattern, without signs, of the written values if there is a base, else 0.
    """
    target = floats(out + 4 * start, len(values))
    if base == 0:
        for k in range(len(values)):  # compiled to faster code than an assignment of the array
            target[k] = values[k]
        return NONE
    before = floats(base + 4 * start, len(values))
    for k in range(len(values)):
        target[k] = before[k] + values[k]
    return largest(target)
