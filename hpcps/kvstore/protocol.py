"""The messages of the key-value store: keys and values, placement on servers, and commands, as in MXNet's KVStore."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from math import prod
from numbers import Integral
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_as
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import DataType
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery

REQUEST, FIRST_VALUE = b"hpcps", b"hpcps first value"
"""The `body` of a request of our workers for a key. The sender reads the reason for a refusal from the body of the
answer. FIRST_VALUE also sets the first value of the key; the shape of the array, as a list, follows it. MXNet's nodes
neither send nor read this body."""


class StoreCommand(IntEnum):
    """A command of a worker to a server."""

    OPTIMIZER = 0
    """Use the pickled optimizer in the body. hpcps refuses it, because it unpickles nothing."""
    MULTI_PRECISION = 1
    STOP = 2
    SYNC = 3
    COMPRESSION = 4
    PROFILER = 5
    DESCRIBE = 1000
    """Answer with a description of the value of the key in the body. Servers of MXNet and ps-lite answer a command that
    they do not know with an empty body, and their workers never send this one."""


SPLIT_FROM = 1_000_000
"""Arrays with at least this number of elements are split over all servers (`MXNET_KVSTORE_BIGARRAY_BOUND` in MXNet)."""

# MXNet's codes of types; the head of a request contains one.
_CODES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}
_SPREAD = 9973
_ALL_KEYS = 2**64 - 1


@dataclass(frozen=True)
class ArrayPart:
    """The contiguous elements of an array on one server."""

    server: int
    key: int
    start: int
    stop: int


def range_start(server: int, servers: int) -> int:
    """Return the first key in the range of a server."""
    return _ALL_KEYS // servers * server


def key_of(key: object, servers: int) -> int:
    """Return a key as an integer in the range of a server.

    Raises:
        ValueError: the key is not a whole number in this range.
    """
    end = range_start(1, servers)
    if not isinstance(key, Integral) or not 0 <= int(key) < end:
        raise ValueError(f"a key is a whole number from 0 to {end - 1}, not {key!r}")
    return int(key)


def parts(key: int, size: int, servers: int, split_from: int = SPLIT_FROM) -> list[ArrayPart]:
    """Return the servers of the elements of an array.

    Args:
        key: the key of the array, as the user numbers it.
        size: its number of elements.
        servers: the number of servers.
        split_from: a smaller array is on one server.
    """
    if size < split_from:
        server = key * _SPREAD % servers
        return [ArrayPart(server, range_start(server, servers) + key, 0, size)]
    # Round halves away from zero, as C does, and compute in doubles, as MXNet does.
    cuts = [int(np.floor(float(size) / servers * server + 0.5)) for server in range(servers + 1)]
    return [
        ArrayPart(server, range_start(server, servers) + key, cuts[server], cuts[server + 1])
        for server in range(servers)
    ]


def head_of(dtype: np.dtype[Any]) -> int:
    """Return the head of a plain push or pull of arrays of a type: Cantor's pairing of the kind, 0, and the type.

    Raises:
        ValueError: MXNet has no such type, or the byte order of the type is not native.
    """
    code = _CODES.get(dtype.name) if dtype.isnative else None
    if code is None:
        raise ValueError(f"arrays of {dtype} cannot be sent; these can: {', '.join(_CODES)}")
    return code * (code + 1) // 2 + code


def dtype_of(head: int) -> np.dtype[Any] | None:
    """Return the type of a head; None for a head that is not of a plain push or pull."""
    return _DTYPES.get(head)


_DTYPES = {code * (code + 1) // 2 + code: np.dtype(name) for name, code in _CODES.items()}


@dataclass(frozen=True)
class ValueDescription:
    """A value, or the part of it on one server.

    Attributes:
        size: the number of elements; 0 if the server has no value for the key.
        dtype: their type.
        source: the worker whose push was the first value.
        shape: the shape of the whole value; None if a node of MXNet has set it.
    """

    size: int
    dtype: str
    source: str
    shape: tuple[int, ...] | None = None

    def encode(self) -> bytes:
        """Return the body of the answer that has this description."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(body: bytes) -> ValueDescription:
        """Return the description in an answer.

        Raises:
            RunError: the body has none.
        """
        try:
            return parse_as(ValueDescription, "an answer", body)
        except InputError as error:
            raise RunError(f"a server answers with {body[:100]!r}, which does not describe a value") from error

    def __str__(self) -> str:
        return described(self.shape or (self.size,), self.dtype)


def described(shape: Sequence[int], dtype: object) -> str:
    """Describe an array in messages."""
    text = f"{prod(shape)} of {dtype}"
    return text if len(shape) == 1 else f"{text} of the shape {list(shape)}"


def shape_of(body: bytes) -> tuple[int, ...] | None:
    """Return the shape in the body of a push of a first value; None if there is none.

    Raises:
        MalformedFrameError: the body has something else.
    """
    text = body.removeprefix(FIRST_VALUE)
    if text == body or not text:
        return None
    try:
        return tuple(parse_as(list[int], "a first value", text))
    except InputError as error:
        raise MalformedFrameError(f"the shape of a first value is {text[:100]!r}") from error


NO_VALUE = ValueDescription(0, "", "")
"""The description of a key without a value."""

TYPES = (int(DataType.UINT64), int(DataType.CHAR), int(DataType.INT32))
"""The types of keys, values (as bytes) and lengths."""

Keys = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pairs:
    """Keys and their values.

    Attributes:
        keys: `[n]`, ascending.
        values: the bytes of the values, concatenated; in a received message, a read-only view of the frame.
        lengths: bytes of each value `[n]`; None if all have the same length, or if there are none.
    """

    keys: Keys
    values: Bytes
    lengths: npt.NDArray[np.int32] | None = None

    def frames(self) -> list[Any]:
        """Return the frames to send; the values are not copied."""
        frames: list[Any] = [self.keys.data, self.values.data if self.values.size else b""]
        return frames if self.lengths is None else [*frames, self.lengths.data]

    @staticmethod
    def one(key: int, values: Bytes | None) -> Pairs:
        """Return the pair of a single key; with None, the request for it."""
        keys = np.array([key], np.uint64)
        if values is None:
            return Pairs(keys, np.empty(0, np.uint8))
        return Pairs(keys, values, np.array([values.nbytes], np.int32))

    @staticmethod
    def read(frames: Sequence[Any]) -> Pairs:
        """Read the data frames of a message.

        Args:
            frames: ZeroMQ frames, or other buffers.

        Raises:
            MalformedFrameError: the frames are inconsistent.
        """
        if len(frames) not in (2, 3):
            raise MalformedFrameError(f"{len(frames)} data frames are not keys and values, with or without lengths")
        keys, values, *rest = (np.frombuffer(frame, np.uint8) if len(frame) else _NOTHING for frame in frames)
        if not keys.size or keys.size % 8:
            raise MalformedFrameError(f"a frame of {keys.size} bytes is no list of keys")
        pairs = Pairs(keys.view(np.uint64), values, _lengths(rest[0]) if rest and rest[0].size else None)
        if (pairs.keys[1:] <= pairs.keys[:-1]).any():
            raise MalformedFrameError("the keys do not ascend")
        lengths = pairs.lengths
        if lengths is not None:
            if lengths.size != pairs.keys.size or (lengths < 0).any():
                raise MalformedFrameError(f"{lengths.size} lengths do not describe {pairs.keys.size} values")
            if int(lengths.sum(dtype=np.int64)) != values.size:
                raise MalformedFrameError(f"the lengths do not add up to the {values.size} bytes of the values")
        return pairs


_NOTHING: Bytes = np.empty(0, np.uint8)


def _lengths(frame: Bytes) -> npt.NDArray[np.int32]:
    if frame.size % 4:
        raise MalformedFrameError(f"a frame of {frame.size} bytes is no list of lengths")
    return frame.view(np.int32)


class Request:
    """An open request to one or more servers.

    Attributes:
        replies: the bodies of the answers to a command, by server.
        problem: why a server that has answered did not do what the request asks for; may be empty.
        waited: whether `wait` was called, which reports the problem.

    Args:
        node: the node of the client.
        what: a description of the request, for messages.
        servers: the ids of the servers that have to answer.
        targets: for a pull, the buffer for the bytes of each server.
        hint: another possible reason for a missing answer, for messages.
    """

    def __init__(
        self,
        node: Node,
        what: str,
        servers: Iterable[int],
        targets: Mapping[int, Bytes] | None = None,
        hint: str = "",
    ) -> None:
        self._node = node
        self._what = what
        self._hint = hint
        self._open = set(servers)
        self._targets = targets or {}
        self._done = Event()
        self.problem = ""
        self.waited = False
        self.replies: dict[int, bytes] = {}

    def take(self, delivery: Delivery) -> bool:
        """Handle an answer, in the receiving thread; return whether it was the last one."""
        if delivery.sender not in self._open:
            raise MalformedFrameError(f"node {delivery.sender} answers a request that it did not receive")
        target = self._targets.get(delivery.sender)
        if delivery.meta.simple_app:
            self.replies[delivery.sender] = delivery.meta.body
        elif refusal := delivery.meta.body:
            self.problem = f"{self._what}: the {self._node.nodes[delivery.sender]} {refusal.decode(errors='replace')}"
        elif target is not None:
            values = Pairs.read(delivery.data).values
            if values.size == target.size:
                np.copyto(target, values)
            else:
                server = self._node.nodes[delivery.sender]
                there = f"{values.size} bytes, not {target.size}" if values.size else "no such key"
                self.problem = f"{self._what}: the {server} has {there}"
        self._open.discard(delivery.sender)
        if not self._open:
            self._done.set()
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until all servers have answered.

        Raises:
            RunError: a server has not answered in time, or has refused the request.
        """
        self.waited = True
        try:
            self.finish()
        except BaseException:
            self._targets = {}  # a late answer must not change an array that the caller reuses
            raise
        if self.problem:
            raise RunError(self.problem)

    def finish(self) -> None:
        """Wait until all servers have answered, whatever they answer.

        Raises:
            RunError: a server has not answered in time.
        """
        node, timeout = self._node, self._node.settings.timeout
        deadline = time.monotonic() + timeout
        while not self._done.wait(min(1.0, max(deadline - time.monotonic(), 0.0))):
            node.check()
            if node.is_cut_off():
                raise RunError(f"{self._what}: {node.described_deaths()}")
            for id_ in self._open.intersection(node.sender.given_up):
                raise RunError(f"{self._what}: messages to the {node.nodes[id_]} are not acknowledged")
            if time.monotonic() >= deadline:
                silent = ", ".join(str(node.nodes[id_]) for id_ in sorted(self._open))
                hint = f"; {dead}" if (dead := node.described_deaths()) else self._hint
                raise RunError(f"{self._what}: no answer within {timeout:g} s from the {silent}{hint}")
