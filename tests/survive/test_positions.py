"""The position of a worker, which its replacement takes over."""

import pytest

from hpcps.numerics.state import go_to_positions, stream_positions
from hpcps.seeds import generator


def streams():
    return {name: generator(7, "worker", 3, name) for name in ("participation", "skipping")}


@pytest.mark.parametrize("draws", [0, 1, 2, 3, 5, 17])
def test_random_streams_go_on_where_they_were(draws):
    ours, theirs = streams(), streams()
    for stream in ours.values():
        stream.random(draws)
        stream.integers(0, 10, draws, dtype="int32")  # uses halves of numbers
    go_to_positions(theirs, stream_positions(ours))
    for name, stream in ours.items():
        assert stream.random(20).tolist() == theirs[name].random(20).tolist()
        assert (
            stream.integers(0, 10, 5, dtype="int32").tolist() == theirs[name].integers(0, 10, 5, dtype="int32").tolist()
        )
