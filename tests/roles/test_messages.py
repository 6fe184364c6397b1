import contextlib
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Credit, Flag, Leave, Message, Ordered, PartWritten, Peer, Read, StepsAnswer
from hpcps.protocol.messages.base import ROLES
from hpcps.protocol.received import Malformed, Received

COUNTS = st.integers(0, 2**32 - 1)
PEERS = st.builds(Peer, st.sampled_from(ROLES), COUNTS)
MASKS = st.lists(st.booleans(), min_size=1, max_size=70).map(lambda bits: np.array(bits, np.bool_))
VALUES = st.lists(st.floats(width=32), min_size=1, max_size=9).map(lambda values: np.array(values, np.float32))
OF_TYPE = {
    int: COUNTS,
    float: st.floats(allow_nan=False).map(lambda value: value + 0.0),  # no -0, which equals a default of 0
    bool: st.booleans(),
    str: st.text(max_size=5),
    Flag: st.sampled_from([Flag.NONE, Flag.LAST, Flag.STATISTICS, Flag.LAST | Flag.STATISTICS]),
    Mask: MASKS,
    Vector: VALUES,
    Peer: PEERS,
    Any: st.integers() | st.text(max_size=5),
}


def of_type(hint):
    """Return the values of a field of this type."""
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of_type(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of_type, args))
    if origin is list and args[0] is int:
        return st.lists(of_type(int), max_size=3)
    if origin is list:
        return st.lists(st.lists(st.integers() | st.text(max_size=3), max_size=3), max_size=3)
    if hint == str | dict[str, Any]:
        anything = st.integers() | st.text(max_size=5)
        return st.text(max_size=5) | st.dictionaries(st.text(max_size=3), anything, max_size=3)
    if origin is dict:
        return st.dictionaries(of_type(args[0]), of_type(args[1]), max_size=3)
    if type(None) in args:
        return st.none() | of_type(next(each for each in args if each is not type(None)))
    return of_type(args[0])  # annotated


def message_of(kind):
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: of_type(hints[field.name]) for field in fields(kind)})


KINDS = list(Message.classes.values())
RUNS = st.text("0123456789abcdef", max_size=10)
envelopes = st.builds(Envelope, PEERS, RUNS, st.one_of([message_of(kind) for kind in KINDS]))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10))
@given(data=st.data())
def test_a_message_survives_its_bytes(kind, data):
    envelope = data.draw(st.builds(Envelope, PEERS, RUNS, message_of(kind)))
    back = Envelope.decode(envelope.header, envelope.payload)
    assert (back.sender, back.run, type(back.message)) == (envelope.sender, envelope.run, kind)
    for field in fields(kind):
        found, sent = getattr(back.message, field.name), getattr(envelope.message, field.name)
        np.testing.assert_equal(found, sent)
        assert found is None or type(found) is type(sent)


@given(envelopes, st.data())
def test_changed_bytes_are_read_or_refused_but_nothing_else(envelope, data):
    header = bytearray(envelope.header)
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessageError):
        Envelope.decode(bytes(header), envelope.payload)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(header):
    with pytest.raises(MalformedMessageError):
        Envelope.decode(header)


NODE = Peer("server", 0)


def header_with(message, note):
    """Return the header of a message with another note."""
    header, own = bytearray(Envelope(NODE, "run", message).header), Envelope(NODE, "run", message).header
    start = own.index(b"{")
    header[start:] = note
    header[58:62] = len(note).to_bytes(4, "little")
    return bytes(header)


@pytest.mark.parametrize(
    ("message", "note", "says"),
    [
        (StepsAnswer(round=1, k=1, steps=2), b'{"k":1}', "steps: Field required"),
        (StepsAnswer(round=1, k=1, steps=2), b'{"k":1,"steps":"2"}', "steps: Input should be a valid integer"),
        (StepsAnswer(round=1, k=1, steps=2), b'{"k":true,"steps":2}', "k: Input should be a valid integer"),
        (
            Read(number=1, shard=0, base_version=0, epoch=1),
            b'{"epoch":-1}',
            "epoch: Input should be greater than or equal",
        ),
        (PartWritten(position=1, checksum="x"), b"{", "Invalid JSON"),
        (PartWritten(position=1, checksum="x"), b"[]", "Input should be an object"),
        (Leave(steps=1, updates=2), b'{"steps":1,"updates":null}', "updates: Input should be a valid integer"),
        (
            Ordered(number=1, submitter=NODE, position=1, version=1, epoch=1, flags=Flag.NONE),
            b'{"of":[9,0],"epoch":1}',
            "index out of range",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_note_that_does_not_fit_is_refused_with_its_field(message, note, says):
    with pytest.raises(MalformedMessageError) as refused:
        Envelope.decode(header_with(message, note))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("sender", "run", "says"),
    [
        (Peer("worker", 1), "mine", "it came from server-0 but says it is worker-1's"),
        (NODE, "other", "it belongs to run other"),
        (NODE, "", "it belongs to run (none)"),
    ],
)
def test_a_message_of_another_sender_or_run_is_malformed(sender, run, says):
    message = Credit(round=1, partitions=2)
    assert Delivered(NODE, Envelope(sender, run, message)).opened("mine", 1.0, 2.0) == Malformed(NODE, says, 2.0)
    right = Delivered(NODE, Envelope(NODE, "mine", message)).opened("mine", 1.0, 2.0)
    assert right == Received(NODE, message, 1.0, 2.0)


def test_the_messages_of_the_protocol_name_each_other():
    """`answer` names classes, and every field of a message is described in its docstring."""
    names = {kind.__name__ for kind in KINDS}
    for kind in KINDS:
        answers = [answer.split(" to ")[0].strip(" ,") for answer in kind.answer.replace(", to", " to").split(", ")]
        assert not kind.answer or set(answers) <= names, kind
        assert kind.sender
        assert kind.receiver
        described = "".join(str(base.__doc__) for base in kind.__mro__)
        own = [field.name for field in fields(kind) if kind.__name__ != "Description"]
        assert all(f"        {name}: " in described for name in own), kind
