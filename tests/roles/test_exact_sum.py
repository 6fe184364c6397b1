"""Sums of units are exact in float64, also where they are as large as they can be."""

import itertools
from functools import reduce

import numpy as np
import pytest

from hpcps.numerics.exact_sum import add_mean, exponents, to_units
from hpcps.numerics.layout import Layout

LAYOUT = Layout.of([("a", (40,)), ("empty", (0,)), ("b", (24,))])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_any_order_gives_the_exact_sum(n):
    random = np.random.default_rng(n)
    # All but one as large as can be, and one with many small bits, of either sign.
    rows = [np.full(LAYOUT.size, np.nextafter(np.float32(4), 0), np.float32) for _ in range(n)]
    rows[-1] = (random.uniform(-4, 4, LAYOUT.size) * 2.0 ** -random.integers(0, 60, LAYOUT.size)).astype(np.float32)
    common = reduce(np.maximum, [exponents(LAYOUT, row) for row in rows])
    units = [np.empty(LAYOUT.size) for _ in rows]
    for row, out in zip(rows, units, strict=True):
        to_units(LAYOUT, row, common, n, out)
    exact = [sum(int(row[i]) for row in units) for i in range(LAYOUT.size)]
    assert max(map(abs, exact)) <= 2**53
    assert all((row == np.rint(row)).all() for row in units)
    for order in itertools.islice(itertools.permutations(units), 24):
        assert list(map(int, reduce(np.add, order))) == exact
    model = np.zeros(LAYOUT.size, np.float32)
    add_mean(LAYOUT, reduce(np.add, units), common, n, n, model)
    np.testing.assert_allclose(model, np.mean(np.array(rows, np.float64), axis=0), rtol=2**-23, atol=4 * 2.0**-49)


def test_a_block_of_zeros_stays_zero_and_the_smallest_value_counts():
    row = np.zeros(LAYOUT.size, np.float32)
    row[-1] = np.finfo(np.float32).smallest_subnormal
    common = exponents(LAYOUT, row)
    units, model = np.empty(LAYOUT.size), np.zeros(LAYOUT.size, np.float32)
    to_units(LAYOUT, row, common, 4, units)
    add_mean(LAYOUT, units, common, 4, 1, model)
    assert np.array_equal(model, row)
