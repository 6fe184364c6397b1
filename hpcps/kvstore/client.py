"""A worker of the key-value store."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcps.errors import LaunchError
from hpcps.kvstore.commands import StoreCommand
from hpcps.kvstore.keys import SPLIT_FROM, Part, head_of, key_of, parts
from hpcps.kvstore.request import Request
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import WORKERS, Meta, NodeRole, id_of
from hpcps.transport.pslite.node import Delivery, Node
from hpcps.transport.pslite.payload import TYPES, Bytes, Pairs
from hpcps.transport.pslite.settings import Settings

Array = npt.NDArray[Any]

_MOST_BYTES = 2**31 - 1
"""Of a value in one message: its length is a signed number of 32 bits."""


class Client:
    """Pushes arrays to the servers and pulls them back; starts on construction and is best used in a `with`.

    Args:
        settings: of the node; by default those of the `DMLC_*` variables.
        sync: let the servers gather the pushes of all workers for a key before they use their sum (`dist_sync`);
            otherwise they use each as it comes (`dist_async`). What the worker of rank 0 says holds.
        split_from: arrays of so many elements or more are split over all servers; the same for all workers.

    Raises:
        LaunchError: the settings are wrong, or the other nodes did not come.
    """

    def __init__(self, settings: Settings | None = None, *, sync: bool = True, split_from: int = SPLIT_FROM) -> None:
        settings = settings or Settings.from_environment(os.environ)
        if settings.role != NodeRole.WORKER:
            raise LaunchError(f"a client is a worker; DMLC_ROLE says {settings.role.name.lower()}")
        if not settings.servers:
            raise LaunchError("a key-value store needs a server; DMLC_NUM_SERVER is 0")
        self._requests: dict[int, Request] = {}
        self._values: dict[int, tuple[int, np.dtype[Any]]] = {}
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
        """This worker's number."""
        return self.node.rank

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.node.settings.workers

    def init(self, key: int, value: Array) -> None:
        """Give a key its first value, the one that the worker of rank 0 has; every worker must call this.

        A worker that takes the place of one that died sends nothing here.

        Raises:
            ValueError: if the key is none, or arrays of that size or type cannot be sent.
            RunError: a server did not answer, or a worker did not come.
        """
        self._check(key, value)
        self._values[key] = value.size, value.dtype
        if self.node.recovered:
            return
        if self.rank == 0:
            self.push(key, value)
        self.barrier()

    def push(self, key: int, value: Array, priority: int = 0) -> None:
        """Send an array for a key, and wait until the servers have used it; in sync mode they use all workers' at once.

        Raises:
            ValueError: if the value of the key is of another size or type, or such arrays cannot be sent.
            RunError: a server did not answer.
        """
        self.start_push(key, value, priority).wait()

    def pull(self, key: int, out: Array, priority: int = 0) -> Array:
        """Fill an array with the value of a key, and return it.

        Raises:
            ValueError: if `out` is not contiguous or not writable, or the value of the key is of another size or type.
            RunError: a server did not answer, or has another number of elements.
        """
        self.start_pull(key, out, priority).wait()
        return out

    def start_push(self, key: int, value: Array, priority: int = 0) -> Request:
        """Begin to push; the array must not change before the returned request has been waited for."""
        head = self._check(key, value)
        pieces = self._pieces(key, np.ascontiguousarray(value))
        request = Request(self.node, f"push of key {key}", [server for server, _, _ in pieces])
        self._send(request, pieces, head, priority, push=True)
        return request

    def start_pull(self, key: int, out: Array, priority: int = 0) -> Request:
        """Begin to pull; the array is filled when the returned request has been waited for."""
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise ValueError("the array to pull into must be contiguous and writable")
        head = self._check(key, out)
        pieces = self._pieces(key, out)
        targets = {server: values for server, _, values in pieces}
        request = Request(self.node, f"pull of key {key}", targets, targets)
        self._send(request, pieces, head, priority, push=False)
        return request

    def barrier(self) -> None:
        """Wait until all workers wait here.

        Raises:
            RunError: they did not come in time.
        """
        self.node.barrier(WORKERS)

    def close(self) -> None:
        """Wait for the other workers, stop the servers, and leave.

        Raises:
            RunError: a worker or server did not come in time.
        """
        try:
            self.barrier()
            if self.rank == 0:
                self._command(StoreCommand.STOP)
            self.node.stop()
        finally:
            self.node.abandon()

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
        """Refuse what a server would drop, and never answer; return the head of a request."""
        head = head_of(array.dtype)
        known = self._values.get(key_of(key, self._servers))
        if known is not None and known != (array.size, array.dtype):
            raise ValueError(f"the value of key {key} is {known[0]} of {known[1]}, not {array.size} of {array.dtype}")
        most = max((part.stop - part.start) * array.itemsize for part in self._parts(key, array.size))
        if most > _MOST_BYTES:
            raise ValueError(
                f"an array of {array.nbytes} bytes puts {most} of them on one server, and a message takes "
                f"{_MOST_BYTES}: use more servers, or several keys"
            )
        return head

    def _parts(self, key: int, size: int) -> list[Part]:
        return parts(int(key), size, self._servers, self._split_from)

    def _pieces(self, key: int, array: Array) -> list[tuple[int, Part, Bytes]]:
        """Return server, place and bytes of each part of an array."""
        flat = array.reshape(-1)
        itemsize = flat.itemsize
        octets = flat.view(np.uint8)
        return [
            (id_of(NodeRole.SERVER, part.server), part, octets[part.start * itemsize : part.stop * itemsize])
            for part in self._parts(key, flat.size)
        ]

    def _send(
        self, request: Request, pieces: list[tuple[int, Part, Bytes]], head: int, priority: int, *, push: bool
    ) -> None:
        timestamp = self.node.timestamp()
        self._requests[timestamp] = request
        meta = Meta(
            head=head, request=True, push=push, pull=not push, app=0, customer=0,
            timestamp=timestamp, data_types=TYPES if push else TYPES[:2], priority=priority,
        )  # fmt: skip
        for server, part, values in pieces:
            self.node.send(server, meta, Pairs.one(part.key, values if push else None).frames())

    def _command(self, command: StoreCommand) -> None:
        """Give all servers a command and wait until they have done it."""
        servers = [id_of(NodeRole.SERVER, rank) for rank in range(self._servers)]
        request = Request(self.node, f"command {command.name.lower()}", servers)
        timestamp = self.node.timestamp()
        self._requests[timestamp] = request
        meta = Meta(head=command, request=True, simple_app=True, app=0, customer=0, timestamp=timestamp)
        for server in servers:
            self.node.send(server, meta)
        request.wait()

    def _take(self, delivery: Delivery) -> None:
        """Take in an answer, in the thread that receives."""
        timestamp = delivery.meta.timestamp
        request = None if delivery.meta.request else self._requests.get(timestamp)
        if request is None:
            self.node.strays.drop("unexpected", f"node {delivery.sender} answers a request that is not open")
            return
        try:
            if request.take(delivery):
                del self._requests[timestamp]
        except MalformedFrameError as error:
            self.node.strays.drop("malformed", str(error))
