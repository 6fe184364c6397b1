"""What the front ends share whose tensors become arrays: gradients together, and errors that a framework repeats."""

import numpy as np
import pytest

from hpcps.errors import RunError, SpecError
from hpcps.session import current
from hpcps.session.arrays import ArrayExchanges, ArrayGradients
from hpcps.session.wrapped import noted, original

ARRAYS = ArrayExchanges("hpcps.numpy")
SHAPES = {"a": (3, 2), "b": (0,), "c": (), "d": (40, 50)}


@pytest.fixture
def alone():
    ARRAYS.init(60.0, True)
    yield
    current.shutdown()


def gradients(dtypes, reduction="mean"):
    forms = [(np.dtype(dtype), shape) for dtype, shape in zip(dtypes, SHAPES.values(), strict=True)]
    return ArrayGradients(ARRAYS, [*SHAPES], forms, reduction)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtypes", [["float32"] * 4, ["float16", "float32", "float64", "float32"]])
@pytest.mark.parametrize("reduction", ["mean", "sum", {"kind": "median"}, {"kind": "geometric_median"}])
def test_gradients_come_back_with_their_types_and_shapes(dtypes, reduction):
    given = [
        np.full(shape, k + 1.5, dtype) for k, (shape, dtype) in enumerate(zip(SHAPES.values(), dtypes, strict=True))
    ]
    known = gradients(dtypes, reduction)
    for _ in range(2):
        for found, expected in zip(known.combine(given), given, strict=True):
            assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())
            assert not np.shares_memory(found, expected)


def test_gradients_are_declared_anew_in_a_later_session():
    known = None
    for _ in range(2):
        ARRAYS.init(60.0, True)
        known = known or gradients(["float32"] * 4)
        assert known.combine([np.ones(shape, np.float32) for shape in SHAPES.values()])[0].tolist() == [[1, 1]] * 3
        current.shutdown()


@pytest.mark.usefixtures("alone")
def test_a_gradient_that_cannot_be_exchanged_is_named():
    with pytest.raises(SpecError, match="gradient/c' is uint32, which cannot be exchanged"):
        gradients(["float32", "float32", "uint32", "float32"])
    with pytest.raises(SpecError, match="gradient/a' is int32: the mean is for floats"):
        gradients(["int32"] * 4)


def test_the_error_that_a_framework_repeats_is_found():
    error = RunError("worker-0 waited for worker-1")
    with pytest.raises(RunError), noted():
        raise error
    assert original(RuntimeError("INTERNAL: RunError: worker-0 waited for worker-1\nat ...")) is error
    for other in (RuntimeError("out of memory"), SpecError("worker-0 waited for worker-1")):
        assert original(other) is other
