import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcps.protocol.messages import Flag, Kind, MalformedMessageError, Message, Peer

messages = st.builds(
    Message,
    kind=st.sampled_from(Kind),
    sender=st.builds(Peer, st.sampled_from(["server", "validator", "worker"]), st.integers(0, 2**32 - 1)),
    run=st.text("0123456789abcdef", max_size=10),
    round=st.integers(0, 2**64 - 1),
    version=st.integers(0, 2**64 - 1),
    index=st.integers(0, 2**64 - 1),
    shard=st.integers(0, 2**32 - 1),
    partition=st.integers(0, 2**32 - 1),
    flags=st.sampled_from([Flag.NONE, Flag.LAST, Flag.STATISTICS, Flag.LAST | Flag.STATISTICS]),
    mask=st.none() | st.lists(st.booleans(), min_size=1, max_size=70).map(lambda bits: np.array(bits, np.bool_)),
    note=st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), max_size=3),
    payload=st.none() | st.lists(st.floats(width=32), min_size=1, max_size=9).map(lambda v: np.array(v, np.float32)),
)


@given(messages)
def test_a_message_survives_its_bytes(message):
    back = Message.decode(message.header(), message.payload)
    for name in ("kind", "sender", "run", "round", "version", "index", "shard", "partition", "flags", "note"):
        assert getattr(back, name) == getattr(message, name)
    for name in ("mask", "payload"):
        np.testing.assert_array_equal(getattr(back, name), getattr(message, name))


@given(messages, st.data())
def test_changed_bytes_are_read_or_refused_but_nothing_else(message, data):
    header = bytearray(message.header())
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessageError):
        Message.decode(bytes(header), message.payload)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(header):
    with pytest.raises(MalformedMessageError):
        Message.decode(header)
