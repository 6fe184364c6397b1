"""The meta frame, byte for byte, and what is not one."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import METAS, mutated

from hpcps.kvstore.protocol import Pairs
from hpcps.transport.pslite.encoding import MOST_BYTES, MalformedFrameError, decode, encode
from hpcps.transport.pslite.meta import EMPTY, Command, Control, Meta, NodeInfo, NodeRole

# What C++ nodes (MXNet 1.9.1) sent, seen on the wire: a server registers, at port 50123; a worker waits at a barrier
# and sends a heartbeat; a worker pushes; a server has taken a push.
HOST = "3132372e302e302e31"
SEEN = {
    f"08ffffffff071a1f0802121b080010ffffffff071a09{HOST}20cb870328005000200028003000400050ffffffff0760006800": Meta(
        control=Control(Command.ADD_NODE, (NodeInfo(NodeRole.SERVER, "127.0.0.1", 50123),)), timestamp=0
    ),
    "08ffffffff071a040803180720012800300038004001500060006800": Meta(
        control=Control(Command.BARRIER, group=7), request=True, app=0, customer=0, timestamp=1
    ),
    f"08ffffffff071a1b08051217080110091a09{HOST}20cc870328005000200028003000400250ffffffff0760006800": Meta(
        control=Control(Command.HEARTBEAT, (NodeInfo(NodeRole.WORKER, "127.0.0.1", 50124, 9),)), timestamp=2
    ),
    "0800200128013000380040054a020809500060006800": Meta(
        head=0, request=True, push=True, app=0, customer=0, timestamp=5, data_types=(8, 9)
    ),
    "080020002801300038004000500060006800": Meta(head=0, push=True, app=0, customer=0, timestamp=0),
}


@pytest.mark.parametrize("seen", SEEN)
def test_the_bytes_are_those_of_cpp_nodes(seen):
    assert encode(SEEN[seen]).hex() == seen
    assert decode(bytes.fromhex(seen)) == SEEN[seen]


numbers = st.integers(-(2**31), 2**31 - 1)
hosts = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,40}", fullmatch=True)
nodes = st.builds(NodeInfo, st.sampled_from(NodeRole), hosts, st.integers(1, 65535), numbers, st.booleans(), numbers)
controls = st.one_of(
    st.builds(Control, st.sampled_from([Command.ADD_NODE, Command.HEARTBEAT]), st.lists(nodes, max_size=4).map(tuple)),
    st.builds(Control, st.just(Command.BARRIER), group=st.integers(1, 7)),
    st.builds(Control, st.just(Command.ACK), signature=st.integers(0, 2**64 - 1)),
)
metas = st.builds(
    Meta, head=numbers, body=st.binary(max_size=40), control=st.none() | controls, request=st.booleans(),
    push=st.booleans(), pull=st.booleans(), simple_app=st.booleans(), app=numbers, customer=numbers, timestamp=numbers,
    data_types=st.lists(st.integers(0, 11), max_size=4).map(tuple), priority=numbers,
)  # fmt: skip


@pytest.mark.thorough
@given(metas)
def test_what_is_written_is_read(meta):
    assert decode(encode(meta)) == meta


def test_unknown_fields_are_skipped_and_types_may_come_unpacked():
    # Field 11 (the data size, which C++ nodes may send), field 20 in 8 bytes, field 21 in 4, field 22 as bytes.
    extra = bytes.fromhex("58ff01" + "a101" + "00" * 8 + "ad01" + "00" * 4 + "b20102abcd" + "48084809")
    assert decode(encode(Meta(head=4)) + extra) == Meta(head=4, data_types=(8, 9))


def test_a_field_that_is_not_there_is_empty():
    assert decode(b"") == Meta(head=EMPTY)


MALFORMED = {
    "80": "ends within a number",
    "08" + "ff" * 10 + "01": "more than ten bytes",
    "00": "number 0",
    "0b": "unknown type 3",
    "1205aa": "beyond the end",
    "0a00": "field 1 is not a number",
    "1000": "field 2 is not bytes",
    "1a020809": "no command 9",
    "1a06" + "0802" + "12020807": "no role 7",
    "1a09" + "0802" + "1205" + "1a0161" + "2000": "no port 0",
    "1a0c" + "0802" + "1208" + "1a0161" + "20ffff0f08": "ends within",
    "1a0a" + "0802" + "1206" + "1a022f20" + "2001": "no IPv4 address or host name",
    "1a0a" + "0802" + "1206" + "1a022d61" + "2001": "no IPv4 address or host name",  # begins with a hyphen
}


@pytest.mark.parametrize("frame", MALFORMED)
def test_a_malformed_frame_says_what_is_wrong(frame):
    with pytest.raises(MalformedFrameError, match=MALFORMED[frame]):
        decode(bytes.fromhex(frame))


def test_a_frame_is_not_too_long():
    with pytest.raises(MalformedFrameError, match="longer than"):
        decode(bytes(MOST_BYTES + 1))


def test_mutated_frames_are_read_or_refused():
    source = random.Random(1)
    refused = 0
    for _ in range(5000):
        try:
            meta = decode(mutated(source))
        except MalformedFrameError:
            refused += 1
            continue
        # Fields that a command does not have are lost on the way, and nothing else.
        assert encode(decode(encode(meta))) == encode(meta)
    assert 1000 < refused < 4900
    assert [decode(encode(meta)) for meta in METAS] == METAS


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
