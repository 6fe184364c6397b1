"""Encode and decode a ps-lite meta frame, a protobuf message, without protobuf.

The field numbers are those of ps-lite's `meta.proto`. C++ protobuf writes every field, including zeros, in the order of
the numbers. This encoder does the same, so its bytes are equal. The decoder accepts fields in any order and skips
unknown fields, as protobuf requires; so do C++ nodes with the fields that hpcps adds, whose numbers begin at 100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcps.transport.pslite.meta import EMPTY, Command, Control, Meta, NodeInfo, NodeRole

MOST_BYTES = 1 << 20
"""Maximum size of a meta frame; a list of 20,000 nodes fits into it."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WORD = 0xFFFFFFFFFFFFFFFF


class RefusedError(Exception):
    """A peer violates the protocol; the message is one line."""


class Admission(Enum):
    """How a node treats a sender."""

    MEMBER = 1
    STRANGER = 2
    LATER = 3
    """Possibly a member that this node does not know yet: read nothing from it until the node knows it."""


class MalformedFrameError(ValueError):
    """The bytes are not a ps-lite message; the message is one line."""


def encode(meta: Meta) -> bytes:
    """Return the meta frame of a message."""
    return _encode(_META, meta)


def decode(frame: bytes) -> Meta:
    """Read a meta frame.

    Raises:
        MalformedFrameError: the frame is not a meta frame.
    """
    if len(frame) > MOST_BYTES:
        raise MalformedFrameError(f"a meta frame of {len(frame)} bytes is longer than {MOST_BYTES}")
    return Meta(**_decode(_META, frame))


@dataclass(frozen=True)
class _Field:
    """A field of a protobuf message.

    Attributes:
        name: the attribute of our class.
        wire: the type in the frame: a number, or bytes.
        read: converts a value in the frame to that of the attribute.
        write: converts it back.
        without: the value of the attribute if the field is not written.
        repeated: whether the field may occur several times: the attribute is a tuple, of which `read` returns elements
            and `write` takes all.
    """

    name: str
    wire: type | tuple[type, ...]
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    without: object = None
    repeated: bool = False


def _encode(fields: Mapping[int, _Field], message: object) -> bytes:
    out = bytearray()
    for number, field in fields.items():
        value = getattr(message, field.name)
        if value == field.without:
            continue
        for each in field.write(value) if field.repeated else (field.write(value),):
            if isinstance(each, bytes):
                out += _varint(number << 3 | _BYTES) + _varint(len(each)) + each
            else:
                out += _varint(number << 3 | _VARINT) + _varint(each)
    return bytes(out)


def _decode(fields: Mapping[int, _Field], frame: bytes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, value in _fields(frame):
        if (field := fields.get(number)) is None:
            continue
        if not isinstance(value, field.wire):
            raise MalformedFrameError(f"field {number} is not {'bytes' if field.wire is bytes else 'a number'}")
        if field.repeated:
            values.setdefault(field.name, []).extend(field.read(value))
        else:
            values[field.name] = field.read(value)
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _int32(value: int) -> int:
    """Take the low 32 bits as a signed number, as protobuf does."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _nodes(frame: bytes) -> tuple[NodeInfo]:
    values: dict[str, Any] = {"role": 0, "host": b"", "port": 0} | _decode(_NODE, frame)
    role, host, port = values["role"], values["host"], values["port"]
    if role not in set(NodeRole):
        raise MalformedFrameError(f"there is no role {role}")
    if not 0 < port < 65536:
        raise MalformedFrameError(f"there is no port {port}")
    if not 0 < len(host) <= 253 or not host[:1].isalnum() or not all(byte in _HOST for byte in host):
        raise MalformedFrameError(f"{host[:40]!r} is no IPv4 address or host name")
    return (NodeInfo(**values | {"role": NodeRole(role), "host": host.decode("ascii")}),)


_HOST = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


def _control(frame: bytes) -> Control | None:
    values = {"command": 0} | _decode(_CONTROL, frame)
    try:
        command = Command(values["command"])
    except ValueError:
        raise MalformedFrameError(f"there is no command {values['command']}") from None
    # A C++ node may send an empty control part instead of none.
    return None if command == Command.EMPTY else Control(**values | {"command": command})


def _numbers(value: int | bytes) -> tuple[int, ...]:
    """Read one number, or several that are packed."""
    if isinstance(value, int):
        return (value,)
    at, values = 0, []
    while at < len(value):
        number, at = _read_varint(value, at)
        values.append(number)
    return tuple(values)


_NODE = {
    1: _Field("role", int, int),
    2: _Field("id", int, _int32),
    3: _Field("host", bytes, bytes, str.encode),
    4: _Field("port", int, _int32),
    5: _Field("is_recovery", int, bool),
    10: _Field("customer", int, _int32),
    100: _Field("wanted", int, _int32, without=EMPTY),
    101: _Field("incarnation", int, _int32, without=0),
}
_CONTROL = {
    1: _Field("command", int, int),
    2: _Field("nodes", bytes, _nodes, lambda nodes: [_encode(_NODE, node) for node in nodes], repeated=True),
    3: _Field("group", int, _int32, without=0),
    4: _Field("signature", int, int, without=0),
}
_META = {
    1: _Field("head", int, _int32),
    2: _Field("body", bytes, bytes, without=b""),
    3: _Field("control", bytes, _control, lambda control: _encode(_CONTROL, control)),
    4: _Field("request", int, bool),
    5: _Field("push", int, bool),
    6: _Field("simple_app", int, bool),
    7: _Field("app", int, _int32, without=EMPTY),
    8: _Field("timestamp", int, _int32, without=EMPTY),
    9: _Field("data_types", (int, bytes), _numbers, lambda types: [b"".join(map(_varint, types))], (), repeated=True),
    10: _Field("customer", int, _int32),
    12: _Field("pull", int, bool),
    13: _Field("priority", int, _int32),
}


def _fields(frame: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field; skip fields of fixed size, which ps-lite does not use."""
    at, end = 0, len(frame)
    while at < end:
        tag, at = _read_varint(frame, at)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise MalformedFrameError("a field has the number 0")
        if kind == _VARINT:
            value, at = _read_varint(frame, at)
            yield field, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(frame, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise MalformedFrameError(f"field {field} is of the unknown type {kind}")
        if size > end - at:
            raise MalformedFrameError(f"field {field} of {size} bytes goes beyond the end")
        if kind == _BYTES:
            yield field, frame[at : at + size]
        at += size


def _read_varint(frame: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(frame):
            raise MalformedFrameError("it ends within a number")
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at
    raise MalformedFrameError("a number has more than ten bytes")


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    value &= _WORD  # a negative number takes ten bytes
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
