"""A worker of the key-value store."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcps.errors import LaunchError, RunError
from hpcps.kvstore.protocol import (
    FIRST_VALUE,
    REQUEST,
    SPLIT_FROM,
    TYPES,
    ArrayPart,
    Bytes,
    Pairs,
    Request,
    StoreCommand,
    ValueDescription,
    described,
    head_of,
    key_of,
    parts,
)
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import WORKERS, Meta, NodeRole, id_of, rank_of
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery
from hpcps.transport.pslite.settings import Settings

Array = npt.NDArray[Any]

_MOST_BYTES = 2**31 - 1
"""Maximum size of a value in one message: its length is a signed number of 32 bits."""


class Client:
    """Pushes arrays to the servers and pulls them; the constructor starts the node, so use a `with` statement.

    Args:
        settings: the settings of the node; by default from the `DMLC_*` variables.
        sync: make the servers collect the pushes of all workers for a key and use their sum (`dist_sync`); otherwise
            they use each push when it arrives (`dist_async`). The value of the worker of rank 0 applies.
        split_from: arrays with at least this number of elements are split over all servers; the same for all workers.

    Raises:
        LaunchError: the settings are wrong, or the other nodes did not register.
    """

    def __init__(self, settings: Settings | None = None, *, sync: bool = True, split_from: int = SPLIT_FROM) -> None:
        settings = settings or Settings.from_environment(os.environ)
        if settings.role != NodeRole.WORKER:
            raise LaunchError(f"a client is a worker, but DMLC_ROLE is {settings.role.name.lower()}")
        if not settings.servers:
            raise LaunchError("a key-value store needs a server; DMLC_NUM_SERVER is 0")
        self._requests: dict[int, Request] = {}
        self._failed: list[Request] = []
        self._values: dict[int, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._split_from = split_from
        self._servers = settings.servers
        self.node = Node(settings, self._take)
        self.node.start()
        try:
            if sync and self.rank == 0 and not self.node.recovered:
                self._command(StoreCommand.SYNC)
        except BaseException:
            self.node.abandon()
            raise

    @property
    def rank(self) -> int:
        """The rank of this worker."""
        return self.node.rank

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.node.settings.workers

    def init(self, key: int, value: Array) -> None:
        """Set the first value of a key to the array of the worker of rank 0; every worker must call this.

        A worker that replaces a dead one changes no value and does not wait.

        Raises:
            ValueError: the key is invalid or has its first value already, the array cannot be sent, or it differs in
                shape, type or distribution over the servers from the value that the key has. MXNet's servers do not
                tell the latter.
            RunError: a server did not answer or has a value for the key already, or a worker did not call this in time.
        """
        self._check(key, value)
        if int(key) in self._values:
            raise ValueError(f"key {key} has its first value already; push changes a value")
        self._values[int(key)] = value.shape, value.dtype
        if not self.node.recovered:
            if self.rank == 0:
                self._push(key, value, 0, FIRST_VALUE + json.dumps(value.shape).encode()).wait()
            self.barrier()
        if self.rank != 0 or self.node.recovered:
            self._compare(key, value)

    def push(self, key: int, value: Array, priority: int = 0) -> None:
        """Send an array for a key, and wait until the servers have used it; in sync mode they wait for all workers.

        Raises:
            ValueError: `init` was not called for the key, its value has another shape or type, or the array cannot be
                sent.
            RunError: a server did not answer, or its value of the key has another size or type.
        """
        self.start_push(key, value, priority).wait()

    def pull(self, key: int, out: Array, priority: int = 0) -> Array:
        """Fill an array with the value of a key, and return it.

        Raises:
            ValueError: `out` is not contiguous or not writable, or the value of the key has another shape or type.
            RunError: a server did not answer, or its value has another number of elements.
        """
        self.start_pull(key, out, priority).wait()
        return out

    def start_push(self, key: int, value: Array, priority: int = 0) -> Request:
        """Start a push; the array must not change until `wait` of the returned request has returned."""
        self._check(key, value)
        if int(key) not in self._values:
            raise ValueError(f"key {key} has no first value: all workers call init({key}, array) before they push")
        return self._push(key, value, priority, REQUEST)

    def start_pull(self, key: int, out: Array, priority: int = 0) -> Request:
        """Start a pull; the array is filled when `wait` of the returned request has returned."""
        head = self._check(key, out)
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("the array to pull into must be contiguous and writable")
        pieces = self._pieces(key, out)
        targets = {server: values for server, _, values in pieces}
        request = Request(self.node, f"pull of key {key}", targets, targets)
        self._send(request, pieces, head, priority, REQUEST, push=False)
        return request

    def barrier(self) -> None:
        """Wait until all workers call this.

        Raises:
            RunError: a worker did not call this in time.
        """
        self.node.barrier(WORKERS)

    def close(self) -> None:
        """Wait for open requests and the other workers, stop the servers, and leave; no effect after leaving.

        Raises:
            RunError: a request failed whose `wait` was not called, or a worker or server did not arrive in time.
        """
        if self.node.left:
            return
        try:
            problems = self._finish_requests()
            self.barrier()
            if self.rank == 0:
                self._command(StoreCommand.STOP)
            self.node.stop()
        finally:
            self.node.abandon()
        if problems:
            raise RunError("; ".join(problems))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.node.abandon()

    def _check(self, key: int, array: Array) -> int:
        """Refuse a request that a server would drop without an answer; return the head of the request."""
        if not isinstance(array, np.ndarray):
            raise ValueError(f"the value of key {key} must be a numpy array, not of the type {type(array).__name__}")
        head = head_of(array.dtype)
        known = self._values.get(key_of(key, self._servers))
        if known is not None and known != (array.shape, array.dtype):
            here = described(array.shape, array.dtype)
            raise ValueError(f"the value of key {key} is {described(*known)}, not {here}")
        most = max((part.stop - part.start) * array.itemsize for part in self._parts(key, array.size))
        if most > _MOST_BYTES:
            raise ValueError(
                f"an array of {array.nbytes} bytes puts {most} of them on one server, and a message takes "
                f"{_MOST_BYTES}: use more servers, or several keys"
            )
        return head

    def _compare(self, key: int, value: Array) -> None:
        """Check that the value of a key has the shape and type of an array, and the same part of it on each server.

        Raises:
            ValueError: it has not.
        """
        replies = self._command(StoreCommand.DESCRIBE, str(int(key)).encode())
        if not all(replies.values()):
            return  # a server of MXNet does not describe its values
        decoded = {rank_of(server): ValueDescription.decode(body) for server, body in replies.items()}
        found = {server: part for server, part in decoded.items() if part.size}
        own = {part.server: part.stop - part.start for part in self._parts(key, value.size) if part.stop > part.start}
        if not found:
            return  # a new server has replaced the one that had the value
        first = next(iter(found.values()))
        whole = replace(first, size=sum(part.size for part in found.values()))
        here = f"key {key}: the first value of this worker is {described(value.shape, value.dtype)}"
        shape = whole.shape or (value.shape if whole.size == value.size else (whole.size,))
        if (shape, whole.dtype) != (value.shape, value.dtype.name):
            self._values[int(key)] = shape, np.dtype(whole.dtype)
            raise ValueError(
                f"{here}, but the {whole.source} has set it to {whole}; all workers need the same shape and type"
            )
        if {server: part.size for server, part in found.items()} != own:
            raise ValueError(
                f"{here}, but the {whole.source} has split it over the servers in another way: split_from must be the "
                "same for all workers"
            )

    def _parts(self, key: int, size: int) -> list[ArrayPart]:
        return parts(int(key), size, self._servers, self._split_from)

    def _pieces(self, key: int, array: Array) -> list[tuple[int, ArrayPart, Bytes]]:
        """Return the server, the part and the bytes of each part of an array."""
        flat = array.reshape(-1)
        itemsize = flat.itemsize
        octets = flat.view(np.uint8)
        return [
            (id_of(NodeRole.SERVER, part.server), part, octets[part.start * itemsize : part.stop * itemsize])
            for part in self._parts(key, flat.size)
        ]

    def _push(self, key: int, value: Array, priority: int, body: bytes) -> Request:
        head = self._check(key, value)
        pieces = self._pieces(key, np.ascontiguousarray(value))
        hint = "; in sync mode it answers when all workers have pushed this key"
        request = Request(self.node, f"push of key {key}", [server for server, _, _ in pieces], hint=hint)
        self._send(request, pieces, head, priority, body, push=True)
        return request

    def _send(
        self,
        request: Request,
        pieces: list[tuple[int, ArrayPart, Bytes]],
        head: int,
        priority: int,
        body: bytes,
        *,
        push: bool,
    ) -> None:
        timestamp = self.node.timestamp()
        self._requests[timestamp] = request
        meta = Meta(
            head=head, body=body, request=True, push=push, pull=not push, app=0, customer=0,
            timestamp=timestamp, data_types=TYPES if push else TYPES[:2], priority=priority,
        )  # fmt: skip
        for server, part, values in pieces:
            self.node.send(server, meta, Pairs.one(part.key, values if push else None).frames())

    def _command(self, command: StoreCommand, body: bytes = b"") -> dict[int, bytes]:
        """Send a command to all servers and wait until they have executed it; return the bodies of their answers."""
        servers = [id_of(NodeRole.SERVER, rank) for rank in range(self._servers)]
        request = Request(self.node, f"command {command.name.lower()}", servers)
        timestamp = self.node.timestamp()
        self._requests[timestamp] = request
        meta = Meta(head=command, body=body, request=True, simple_app=True, app=0, customer=0, timestamp=timestamp)
        for server in servers:
            self.node.send(server, meta)
        request.wait()
        return request.replies

    def _finish_requests(self) -> list[str]:
        """Wait for the answers to open requests, as MXNet does; return the problems that no `wait` has reported."""
        pending = [request for request in [*self._requests.values()] if not request.waited]
        for request in pending:
            request.finish()
        return [request.problem for request in {*pending, *self._failed} if request.problem and not request.waited]

    def _take(self, delivery: Delivery) -> None:
        """Handle an answer, in the receiving thread."""
        timestamp = delivery.meta.timestamp
        request = None if delivery.meta.request else self._requests.get(timestamp)
        if request is None:
            self.node.dropped.drop("unexpected", f"node {delivery.sender} answers a request that is not open")
            return
        try:
            if request.take(delivery):
                del self._requests[timestamp]
                if request.problem:
                    self._failed = [*(each for each in self._failed if not each.waited), request]
        except MalformedFrameError as error:
            self.node.dropped.drop("malformed", str(error))
