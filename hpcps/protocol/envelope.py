"""The envelope of a message: who sends it, in which run; and how both become bytes.

The header is sent separately from the payload, so that the payload goes from the sender's buffer to the receiver's
without a copy, also between devices. Frame of a header (little-endian): magic, version of the frame, code of the
message's class, sender's role, flags, sender's index, run id, round, model version, log index, shard, partition, number
of mask bits, note bytes, payload bytes; then the packed block mask; then the note (JSON).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError, create_model

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import ROLES, Flag, Message, Peer
from hpcps.protocol.messages.base import HeaderField, InNote
from hpcps.protocol.received import Malformed, Received

_MAGIC = b"HPS\x01"
_FRAME_VERSION = 3
_FRAME = struct.Struct("<4sBBBBI10sQQQIIIIQ")
_NUMBERS = ("round", "version", "index", "shard", "partition")
_PAYLOAD = "values"


class MalformedMessageError(ValueError):
    """The received bytes are not a message of hpcps; the text is the reason, in one line."""


@dataclass(frozen=True)
class Envelope:
    """A message with its sender and its run.

    Attributes:
        sender: the role that sends it.
        run: the id of the run that it belongs to.
        message: the message.
    """

    sender: Peer
    run: str
    message: Message

    @property
    def payload(self) -> Vector | None:
        """The payload of the message."""
        return self.message.payload

    @property
    def payload_bytes(self) -> int:
        """The size of the payload."""
        return self.message.payload_bytes

    @cached_property
    def header(self) -> bytes:
        """Everything but the payload, encoded once for all receivers."""
        message = self.message
        layout = _layout_of(message.code)
        round, version, index, shard, partition, flags, mask = layout.fixed(message)
        note = layout.note(message) if layout.notes else b""
        packed = b"" if mask is None else np.packbits(mask, bitorder="little").tobytes()
        frame = _FRAME.pack(
            _MAGIC, _FRAME_VERSION, message.code, ROLES.index(self.sender.role), flags, self.sender.index,
            self.run.encode(), round, version, index, shard, partition, 0 if mask is None else len(mask), len(note),
            message.payload_bytes,
        )  # fmt: skip
        return frame + packed + note

    @staticmethod
    def decode(header: bytes, payload: Vector | None = None) -> Envelope:
        """Decode a header and attach the payload that was received with it.

        Raises:
            MalformedMessageError: the bytes are not a header, or the payload has another size than the header says.
        """
        if len(header) < _FRAME.size:
            raise MalformedMessageError(f"a header of {len(header)} bytes is shorter than {_FRAME.size}")
        magic, frame, code, role, flags, sender, run, *numbers = _FRAME.unpack_from(header)
        payload_bytes, note_bytes, bits = numbers.pop(), numbers.pop(), numbers.pop()
        if magic != _MAGIC or frame != _FRAME_VERSION:
            raise MalformedMessageError("the header does not begin like a message of hpcps")
        mask_bytes = -(-bits // 8)
        if len(header) != _FRAME.size + mask_bytes + note_bytes:
            announced = _FRAME.size + mask_bytes + note_bytes
            raise MalformedMessageError(f"a header of {len(header)} bytes announces {announced}")
        if payload_bytes != (0 if payload is None else payload.nbytes):
            got = 0 if payload is None else payload.nbytes
            raise MalformedMessageError(f"the header announces a payload of {payload_bytes} bytes, {got} were received")
        mask = None
        if bits:
            packed = np.frombuffer(header, np.uint8, mask_bytes, _FRAME.size)
            mask = np.unpackbits(packed, count=bits, bitorder="little").astype(np.bool_)
        try:
            values = [*numbers, _flags(flags), mask, payload]
            message = _layout_of(code).message(values, header[_FRAME.size + mask_bytes :])
            return Envelope(Peer(ROLES[role], sender), run.rstrip(b"\0").decode("ascii"), message)
        except KeyError:
            raise MalformedMessageError(f"the header is of a message with the unknown code {code}") from None
        except (ValueError, IndexError) as error:
            raise MalformedMessageError(f"the header holds an invalid field: {_in_one_line(error)}") from error


class Envelopes:
    """Puts the messages of one sender into envelopes.

    All receivers of a message get the same envelope, one after another, so its header is encoded once.
    """

    def __init__(self, sender: Peer, run: str) -> None:
        """Take the sender, and the id of its run."""
        self._sender, self._run = sender, run
        self._last: Envelope | None = None

    def around(self, message: Message) -> Envelope:
        """Return the envelope of a message."""
        if self._last is None or self._last.message is not message:
            self._last = Envelope(self._sender, self._run, message)
        return self._last


class Delivered(NamedTuple):
    """An envelope has come. A tuple is made fast, which each message needs; see also `Received`.

    Attributes:
        source: its sender according to the transport.
        envelope: the envelope.
        skipped: how many messages of its sender went to predecessors of this process, if it is the first that this
            process, a replacement, gets of it; else None.
        incarnation: the number of the sender's process, 0 or that of a replacement; None if the transport does not
            know it, or the sender is a server, whose processes count as one.
    """

    source: Peer
    envelope: Envelope
    skipped: int | None = None
    incarnation: int | None = None

    def opened(self, run: str, time: float = 0.0, arrived: float = 0.0) -> Received | Malformed:
        """Return its message; one with a wrong sender or of another run counts as malformed.

        Args:
            run: the id of this run.
            time: see `Received`.
            arrived: see `Received`.
        """
        source, envelope, *_ = self
        if envelope.sender != source:
            return Malformed(source, f"it came from {source} but says it is {envelope.sender}'s", arrived)
        if envelope.run != run:
            return Malformed(source, f"it belongs to run {envelope.run or '(none)'}", arrived)
        return Received(source, envelope.message, time, arrived)


class _HeaderLayout:
    """Where a header holds the fields of one class.

    Attributes:
        fixed: returns the numbers, the flags and the mask of a message; 0 and None for those that it does not have.
        notes: the fields in the note, with their defaults.
    """

    def __init__(self, kind: type[Message]) -> None:
        hints = get_type_hints(kind, include_extras=True)
        places: dict[str, str] = {}
        self.notes: list[tuple[str, InNote, Any]] = []
        types: dict[str, Any] = {}
        for field in fields(kind):  # type: ignore[arg-type]  # every kind is a dataclass
            marks = get_args(hints[field.name])[1:] if get_origin(hints[field.name]) is Annotated else ()
            slot = next((mark.value for mark in marks if isinstance(mark, HeaderField)), field.name)
            if slot in (*_NUMBERS, "flags", "mask", _PAYLOAD):
                places[slot] = field.name
                continue
            note = next((mark for mark in marks if isinstance(mark, InNote)), InNote(field.name))
            self.notes.append((field.name, note, field.default))
            types[note.key] = note.packed or hints[field.name], ... if field.default is MISSING else field.default
        names = [places.get(slot, f"_no_{slot}") for slot in (*_NUMBERS, "flags", "mask")]
        self.fixed: Callable[[Message], tuple[Any, ...]] = attrgetter(*names)
        given = [places.get(slot) for slot in (*_NUMBERS, "flags", "mask", _PAYLOAD)]
        self._given = [(name, number) for number, name in enumerate(given) if name is not None]
        # A receiver that can do without the mask or the payload says so by None; others get an empty one.
        nothing = {"mask": np.zeros(0, np.bool_), _PAYLOAD: np.zeros(0, np.float32)}
        self._empty = {
            places[slot]: empty for slot, empty in nothing.items()
            if slot in places and type(None) not in get_args(_plain(hints[places[slot]]))
        }  # fmt: skip
        self._kind, self._types = kind, types
        # The fields of a note that is left out; None if it cannot be left out.
        defaults = {name: default for name, _, default in self.notes}
        self._defaults = None if MISSING in defaults.values() else defaults

    def note(self, message: Message) -> bytes:
        """Return the note of a message, without the fields that have their defaults."""
        note: dict[str, Any] = {}
        for name, place, default in self.notes:
            value = getattr(message, name)
            if default is MISSING or value != default:
                note[place.key] = value if place.pack is None else place.pack(value)
        return json.dumps(note, separators=(",", ":")).encode() if note else b""

    def message(self, values: list[Any], note: bytes) -> Message:
        """Return the message of these numbers, flags, mask and payload, and of its note.

        Raises:
            ValueError: the note does not fit.
        """
        given = {name: values[number] for name, number in self._given}
        for name, empty in self._empty.items():
            if given[name] is None:
                given[name] = empty
        if not note and self._defaults is not None:
            given |= self._defaults
        elif self.notes:
            found = self._note_type.validate_json(note or b"{}", strict=True)
            for name, place, default in self.notes:
                value = getattr(found, place.key)
                given[name] = value if place.unpack is None or value is default else place.unpack(value)
        message = object.__new__(self._kind)  # all fields are given; `__init__` would set them one by one
        message.__dict__.update(given)
        return message

    @cached_property
    def _note_type(self) -> TypeAdapter[Any]:
        """What checks a note; made when the first one comes."""
        return TypeAdapter(create_model(self._kind.__name__, **self._types))


@cache
def _flags(number: int) -> Flag:
    """Return the flags of a number."""
    return Flag(number)  # finding them takes a microsecond, and each message needs it


@cache
def _layout_of(code: int) -> _HeaderLayout:
    return _HeaderLayout(Message.classes[code])


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _in_one_line(error: ValueError | IndexError) -> str:
    """Return the text of an error; of a note that does not fit, its first mistake."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    return ": ".join([*map(str, first["loc"]), first["msg"]])
