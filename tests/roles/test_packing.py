import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcps.numerics.layout import Layout
from hpcps.numerics.vectors import pack, unpack

layouts = st.lists(st.integers(1, 9), min_size=1, max_size=12).map(
    lambda sizes: Layout.of([(f"b{i}", (n,)) for i, n in enumerate(sizes)])
)


@given(layouts, st.data())
def test_unpack_restores_the_sent_blocks_and_zeroes_the_others(layout, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(layout.blocks), max_size=len(layout.blocks))))
    vector = np.arange(1, layout.size + 1, dtype=np.float32)
    payload = pack(layout, vector, mask, np.empty_like(vector))
    assert payload.size == layout.packed_size(mask)
    out = np.full_like(vector, -1)
    unpack(layout, payload, mask, out)
    np.testing.assert_array_equal(out, np.where(layout.spread(mask), vector, 0))
    covered = layout.runs(mask)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(covered)), "neighbouring blocks are merged"
