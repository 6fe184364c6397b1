import numpy as np
import pytest

from hpcps.transport.pslite.encoding import MalformedFrameError, Pairs


def frames(keys, values, lengths=None):
    parts = [np.array(keys, np.uint64).tobytes(), values]
    return parts if lengths is None else [*parts, np.array(lengths, np.int32).tobytes()]


def test_a_pair_is_key_bytes_and_length():
    values = np.arange(3, dtype=np.float32).view(np.uint8)
    sent = [bytes(frame) for frame in Pairs.one(7, values).frames()]
    assert sent == frames([7], values.tobytes(), [12])
    assert [bytes(frame) for frame in Pairs.one(7, None).frames()] == frames([7], b"")


def test_the_values_are_sent_without_a_copy():
    values = np.zeros(8, np.uint8)
    assert np.shares_memory(np.frombuffer(Pairs.one(1, values).frames()[1], np.uint8), values)


def test_pairs_are_read_back():
    pairs = Pairs.read(frames([2, 9], b"abcdef", [2, 4]))
    assert (pairs.keys.tolist(), pairs.values.tobytes(), pairs.lengths.tolist()) == ([2, 9], b"abcdef", [2, 4])
    assert Pairs.read(frames([2], b"")).lengths is None


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "0 data frames"),
        ([b""] * 4, "4 data frames"),
        ([b"", b"x"], "no list of keys"),
        ([b"1234567", b"x"], "no list of keys"),
        (frames([9, 2], b"ab", [1, 1]), "do not ascend"),
        (frames([2, 2], b"ab", [1, 1]), "do not ascend"),
        ([*frames([2], b"ab"), b"abc"], "no list of lengths"),
        (frames([2], b"ab", [1, 1]), "2 lengths do not describe 1"),
        (frames([2], b"ab", [-2]), "do not describe"),
        (frames([2], b"ab", [3]), "do not add up"),
        (frames([2, 3], b"", [2**31 - 1, 2**31 - 1]), "do not add up"),
    ],
)
def test_frames_that_do_not_fit_together_are_refused(parts, reason):
    with pytest.raises(MalformedFrameError, match=reason):
        Pairs.read(parts)
