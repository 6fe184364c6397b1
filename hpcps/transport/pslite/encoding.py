"""Encode and decode a ps-lite meta frame, a protobuf message, without protobuf.

The field numbers are those of ps-lite's `meta.proto`. C++ protobuf writes every field, including zeros, in the order of
the numbers. This encoder does the same, so its bytes are equal. The decoder accepts fields in any order and skips
unknown fields, as protobuf requires.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

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
    out = bytearray()
    _number(out, 1, meta.head)
    if meta.body:
        _bytes(out, 2, meta.body)
    if meta.control is not None:
        _bytes(out, 3, _encode_control(meta.control))
    _number(out, 4, meta.request)
    _number(out, 5, meta.push)
    _number(out, 6, meta.simple_app)
    if meta.app != EMPTY:
        _number(out, 7, meta.app)
    if meta.timestamp != EMPTY:
        _number(out, 8, meta.timestamp)
    if meta.data_types:
        _bytes(out, 9, b"".join(_varint(kind) for kind in meta.data_types))
    _number(out, 10, meta.customer)
    _number(out, 12, meta.pull)
    _number(out, 13, meta.priority)
    return bytes(out)


def decode(frame: bytes) -> Meta:
    """Read a meta frame.

    Raises:
        MalformedFrameError: the frame is not a meta frame.
    """
    if len(frame) > MOST_BYTES:
        raise MalformedFrameError(f"a meta frame of {len(frame)} bytes is longer than {MOST_BYTES}")
    values: dict[str, object] = {}
    data_types: list[int] = []
    for field, value in _fields(frame):
        if field == 9:
            data_types += [value] if isinstance(value, int) else _packed(value)
        elif field == 2:
            values["body"] = _as_bytes(field, value)
        elif field == 3:
            values["control"] = _decode_control(_as_bytes(field, value))
        elif field in _FLAGS:
            values[_FLAGS[field]] = bool(_as_int(field, value))
        elif field in _NUMBERS:
            values[_NUMBERS[field]] = _int32(_as_int(field, value))
    # A C++ node may send an empty control part instead of none.
    if isinstance(control := values.get("control"), Control) and control.command == Command.EMPTY:
        del values["control"]
    return Meta(**values, data_types=tuple(data_types))  # type: ignore[arg-type]


_FLAGS = {4: "request", 5: "push", 6: "simple_app", 12: "pull"}
_NUMBERS = {1: "head", 7: "app", 8: "timestamp", 10: "customer", 13: "priority"}


def _encode_control(control: Control) -> bytes:
    out = bytearray()
    _number(out, 1, control.command)
    for node in control.nodes:
        _bytes(out, 2, _encode_node(node))
    if control.command == Command.BARRIER:
        _number(out, 3, control.group)
    elif control.command == Command.ACK:
        _number(out, 4, control.signature)
    return bytes(out)


def _encode_node(node: NodeInfo) -> bytes:
    out = bytearray()
    _number(out, 1, node.role)
    _number(out, 2, node.id)
    _bytes(out, 3, node.host.encode())
    _number(out, 4, node.port)
    _number(out, 5, node.is_recovery)
    _number(out, 10, node.customer)
    return bytes(out)


def _decode_control(frame: bytes) -> Control:
    command, nodes, group, signature = 0, [], 0, 0
    for field, value in _fields(frame):
        if field == 1:
            command = _as_int(field, value)
        elif field == 2:
            nodes.append(_decode_node(_as_bytes(field, value)))
        elif field == 3:
            group = _int32(_as_int(field, value))
        elif field == 4:
            signature = _as_int(field, value)
    try:
        return Control(Command(command), tuple(nodes), group, signature)
    except ValueError:
        raise MalformedFrameError(f"there is no command {command}") from None


def _decode_node(frame: bytes) -> NodeInfo:
    role, id_, host, port, is_recovery, customer = 0, EMPTY, b"", 0, False, 0
    for field, value in _fields(frame):
        if field == 1:
            role = _as_int(field, value)
        elif field == 2:
            id_ = _int32(_as_int(field, value))
        elif field == 3:
            host = _as_bytes(field, value)
        elif field == 4:
            port = _int32(_as_int(field, value))
        elif field == 5:
            is_recovery = bool(_as_int(field, value))
        elif field == 10:
            customer = _int32(_as_int(field, value))
    if role not in set(NodeRole):
        raise MalformedFrameError(f"there is no role {role}")
    if not 0 < port < 65536:
        raise MalformedFrameError(f"there is no port {port}")
    if not 0 < len(host) <= 253 or not host[:1].isalnum() or not all(byte in _HOST for byte in host):
        raise MalformedFrameError(f"{host[:40]!r} is no IPv4 address or host name")
    return NodeInfo(NodeRole(role), host.decode("ascii"), port, id_, is_recovery, customer)


_HOST = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


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


def _packed(frame: bytes) -> list[int]:
    at, values = 0, []
    while at < len(frame):
        value, at = _read_varint(frame, at)
        values.append(value)
    return values


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


def _as_int(field: int, value: int | bytes) -> int:
    if not isinstance(value, int):
        raise MalformedFrameError(f"field {field} is not a number")
    return value


def _as_bytes(field: int, value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise MalformedFrameError(f"field {field} is not bytes")
    return value


def _int32(value: int) -> int:
    """Take the low 32 bits as a signed number, as protobuf does."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _varint(value: int) -> bytes:
    value &= _WORD  # a negative number takes ten bytes
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(out: bytearray, field: int, value: int) -> None:
    out += _varint(field << 3 | _VARINT)
    out += _varint(value)


def _bytes(out: bytearray, field: int, value: bytes) -> None:
    out += _varint(field << 3 | _BYTES)
    out += _varint(len(value))
    out += value
