"""States as messages hold them: nothing is lost, and what does not fit is refused."""

import numpy as np
import pytest

from hpcps.numerics.state import PackedState, State

STATE = State(
    {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array([1, 2, 255], np.uint8),
        "empty": np.zeros((0, 4)),
        "number": np.array(3.5),
    },
    {"steps": 3, "large": 2**64 - 1, "deep": {"z": [1, 2], "y": None}},
)


def test_a_state_comes_back_as_it_was():
    packed = PackedState.of(STATE)
    assert packed.values.dtype == np.float32
    found = packed.unpacked()
    assert found.facts == STATE.facts
    assert found.arrays.keys() == STATE.arrays.keys()
    for name, values in STATE.arrays.items():
        assert found.arrays[name].dtype == values.dtype
        assert np.array_equal(found.arrays[name], values)
    assert PackedState.of(found).checksum() == packed.checksum()


def test_each_change_of_a_bit_changes_the_checksum():
    checksums = {PackedState.of(STATE).checksum()}
    for name, values in STATE.arrays.items():
        for k in range(values.nbytes):
            other = {key: each.copy() for key, each in STATE.arrays.items()}
            other[name].reshape(-1).view(np.uint8)[k] ^= 1
            checksums.add(PackedState.of(State(other, STATE.facts)).checksum())
    checksums.add(PackedState.of(State(STATE.arrays, {**STATE.facts, "steps": 4})).checksum())
    checksums.add(PackedState.of(State({**STATE.arrays, "c": np.zeros(0)}, STATE.facts)).checksum())
    reshaped = {**STATE.arrays, "b": STATE.arrays["b"].reshape(3, 2)}
    checksums.add(PackedState.of(State(reshaped, STATE.facts)).checksum())
    assert len(checksums) == 1 + sum(values.nbytes for values in STATE.arrays.values()) + 3


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (["x", "<f4", [100]], "does not fit"),
        (["x", "<f4", [-1, 2]], "does not fit"),
        (["x", "object", [1]], "has no numbers"),
        (["x", "nonsense", [1]], "nonsense"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(table, reason):
    with pytest.raises(ValueError, match=reason):
        PackedState({}, [table], np.zeros(4, np.float32)).unpacked()
