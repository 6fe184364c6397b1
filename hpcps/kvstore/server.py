"""A server of the key-value store, and the values that it stores."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcps.errors import LaunchError, RunError
from hpcps.kvstore.protocol import (
    FIRST_VALUE,
    NO_VALUE,
    REQUEST,
    TYPES,
    Pairs,
    StoreCommand,
    ValueDescription,
    dtype_of,
    key_of,
    range_start,
    shape_of,
)
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import SCHEDULER_ID, Meta, NodeRole, rank_of
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery
from hpcps.transport.pslite.sender import Receipt
from hpcps.transport.pslite.settings import Settings

Array = npt.NDArray[Any]
Update = Callable[[int, Array, Array], None]
"""Changes a stored value in place: `update(key, pushed, stored)`."""


class StoredValue:
    """A stored value.

    A value stays in the memory in which it was received. The first push of a round becomes the sum and then the value.
    Its memory is freed when the next value has replaced it and no message uses it. No value is therefore copied.

    Args:
        value: the first value `[m]`.
        source: the worker that pushed it.
        shape: the shape of the whole value, if the worker has given it.
    """

    def __init__(self, value: Array, source: str, shape: tuple[int, ...] | None) -> None:
        self.value = value
        self.source = source
        self.shape = shape
        self._sending: list[Receipt] = []
        self._round: dict[int, tuple[Array, Meta]] = {}
        self._later: list[tuple[int, Array, Meta]] = []
        self._merged: Array | None = None
        self._next = 0

    @property
    def description(self) -> ValueDescription:
        """The description of the value."""
        return ValueDescription(self.value.size, self.value.dtype.name, self.source, self.shape)

    def sending(self, receipt: Receipt) -> None:
        """Record that a message with the value is being sent."""
        self._sending = [receipt, *(other for other in self._sending if not other.done)]

    def put(self, value: Array) -> None:
        """Replace the value."""
        self.value, self._sending = value, []

    def change(self, key: int, pushed: Array, update: Update) -> None:
        """Apply an update to the value, or to a copy of it if the value is being sent."""
        if not self.value.flags.writeable or not all(receipt.done for receipt in self._sending):
            self.put(self.value.copy())
        update(key, pushed, self.value)

    def gather(self, rank: int, pushed: Array, meta: Meta, workers: int) -> tuple[Array, dict[int, Meta]] | None:
        """Add the push of a worker to this round; after the last one, return the sum of all pushes and their requests.

        Pushes are summed in the order of ranks, independent of the order of arrival. A second push of a worker belongs
        to the next round.
        """
        if rank in self._round:
            self._later.append((rank, pushed, meta))
            return None
        self._round[rank] = (pushed, meta)
        while self._next in self._round and self._next < workers:
            self._fold(self._round[self._next][0])
            self._next += 1
        if self._next < workers:
            return None
        assert self._merged is not None
        done = self._merged, {rank: meta for rank, (_, meta) in self._round.items()}
        self._round, self._merged, self._next = {}, None, 0
        return done

    def later(self) -> list[tuple[int, Array, Meta]]:
        """Return the pushes of the next rounds that have arrived already."""
        later, self._later = self._later, []
        return later

    def _fold(self, pushed: Array) -> None:
        if self._merged is None:
            self._merged = pushed if pushed.flags.writeable else pushed.copy()
        else:
            self._merged += pushed


class Server:
    """Stores the values of its range of keys.

    Args:
        settings: the settings of the node; by default from the `DMLC_*` variables.
        update: applies a push to a stored value, `update(key, pushed, stored)`. Without one, in sync mode the sum of
            the pushes becomes the value, as on MXNet's servers; in async mode each push is added to the value.

    Raises:
        LaunchError: the settings are wrong.
    """

    def __init__(self, settings: Settings | None = None, update: Update | None = None) -> None:
        settings = settings or Settings.from_environment(os.environ)
        if settings.role != NodeRole.SERVER:
            raise LaunchError(f"this is a server, but DMLC_ROLE is {settings.role.name.lower()}")
        self._update = update
        self._workers = settings.workers
        self._servers = settings.servers
        self._entries: dict[int, StoredValue] = {}
        self._sync = False
        self._stopped = Event()
        self.node = Node(settings, self._take)

    def run(self) -> None:
        """Serve until the worker of rank 0 sends the stop command.

        Raises:
            LaunchError: the other nodes did not register.
            RunError: the scheduler died, another node died without replacement, or a worker sent an
                unsupported command.
        """
        self.node.start()
        try:
            while not self._stopped.wait(1.0):
                self.node.check()
                if any(death.node.id == SCHEDULER_ID for death in self.node.deaths()):
                    raise RunError(f"{self.node.me}: {self.node.described_deaths()}")
                self.node.check_deaths()
            self.node.stop()
        finally:
            self.node.abandon()

    def _take(self, delivery: Delivery) -> None:
        """Handle a request of a worker, in the receiving thread."""
        meta = delivery.meta
        if not meta.request or delivery.sender % 2 == 0 or delivery.sender == 1:
            self.node.dropped.drop("unexpected", f"node {delivery.sender} sends a message that is no worker's request")
            return
        if meta.simple_app:
            self._execute(delivery.sender, meta)
            return
        try:
            self._serve(delivery.sender, meta, Pairs.read(delivery.data))
        except MalformedFrameError as error:
            if meta.body.startswith(REQUEST):
                self._answer(delivery.sender, meta, body=f"refuses it: {error}".encode())
            else:
                self.node.dropped.drop("malformed", f"from node {delivery.sender}: {error}")

    def _execute(self, sender: int, meta: Meta) -> None:
        if meta.head not in set(StoreCommand):
            self.node.dropped.drop("malformed", f"node {sender} gives the command {meta.head}, which does not exist")
            return
        command = StoreCommand(meta.head)
        if command == StoreCommand.SYNC:
            self._sync = True
        elif command == StoreCommand.DESCRIBE:
            self._describe(sender, meta)
            return
        elif command != StoreCommand.STOP:
            # An error, because ignoring the command would change the result without notice.
            raise RunError(f"worker {rank_of(sender)} gives the command {command.name.lower()}: {_REASONS[command]}")
        self._answer(sender, meta)
        if meta.head == StoreCommand.STOP:
            self._stopped.set()

    def _describe(self, sender: int, meta: Meta) -> None:
        """Answer with the size and type of a value, and the worker that it came from."""
        try:
            key = range_start(self.node.rank, self._servers) + key_of(int(meta.body), self._servers)
        except ValueError:
            self.node.dropped.drop("malformed", f"node {sender} asks for a description of something that is no key")
            return
        entry = self._entries.get(key)
        description = entry.description if entry is not None else NO_VALUE
        self._answer(sender, meta, body=description.encode())

    def _serve(self, sender: int, meta: Meta, pairs: Pairs) -> None:
        dtype = dtype_of(meta.head)
        if dtype is None:
            raise MalformedFrameError(f"a request of the kind {meta.head}, which this server does not know")
        if pairs.keys.size != 1 or meta.push == meta.pull:
            raise MalformedFrameError("a request that does not push or pull one key")
        key = int(pairs.keys[0])
        start = range_start(self.node.rank, self._servers)
        if not start <= key < start + range_start(1, self._servers):
            raise MalformedFrameError(f"key {key} is not of this server's range")
        if meta.pull:
            self._give(sender, meta, key, dtype)
        else:
            self._keep(sender, meta, key, _typed(pairs, dtype))

    def _give(self, sender: int, meta: Meta, key: int, dtype: np.dtype[Any]) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.value.dtype != dtype:
            if meta.body == REQUEST:
                had = entry.description
                raise MalformedFrameError(f"a pull of {dtype.name} for key {self._own(key)}, which has {had}")
            entry = None
        # The answer for a key without a value has no bytes.
        value = entry.value if entry is not None else np.empty(0, dtype)
        receipt = self._answer(sender, meta, Pairs.one(key, value.view(np.uint8)))
        if entry is not None:
            entry.sending(receipt)

    def _keep(self, sender: int, meta: Meta, key: int, pushed: Array) -> None:
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = StoredValue(pushed, str(self.node.nodes[sender]), shape_of(meta.body))
            self._answer(sender, meta)
            return
        own_key = self._own(key)
        if meta.body.startswith(FIRST_VALUE):
            raise MalformedFrameError(f"key {own_key} has its first value already, from the {entry.source}")
        if entry.value.size != pushed.size or entry.value.dtype != pushed.dtype:
            got, had = f"{pushed.size} of {pushed.dtype.name}", entry.description
            raise MalformedFrameError(f"a push of {got} for key {own_key}, which has {had}")
        if not self._sync:
            entry.change(own_key, pushed, self._update or _add)
            self._answer(sender, meta)
            return
        waiting = deque([(rank_of(sender), pushed, meta)])
        while waiting:
            if (done := entry.gather(*waiting.popleft(), self._workers)) is not None:
                self._finish_round(entry, own_key, *done)
                waiting.extendleft(reversed(entry.later()))

    def _finish_round(self, entry: StoredValue, key: int, merged: Array, requests: dict[int, Meta]) -> None:
        if self._update is None:
            entry.put(merged)
        else:
            entry.change(key, merged, self._update)
        for rank, request in requests.items():
            self._answer(9 + 2 * rank, request)

    def _own(self, key: int) -> int:
        """Return a key as the user numbers it."""
        return key - range_start(self.node.rank, self._servers)

    def _answer(self, to: int, meta: Meta, pairs: Pairs | None = None, body: bytes = b"") -> Any:
        answer = Meta(
            head=meta.head, body=body, push=meta.push, pull=meta.pull, simple_app=meta.simple_app, app=meta.app,
            customer=meta.customer, timestamp=meta.timestamp, data_types=TYPES if pairs is not None else (),
        )  # fmt: skip
        return self.node.send(to, answer, pairs.frames() if pairs is not None else ())


_REASONS = {
    StoreCommand.OPTIMIZER: "it is pickled, and nothing is unpickled here; let the workers update the model, or give "
    "the server an update of its own",
    StoreCommand.MULTI_PRECISION: "this server stores values in the type in which they arrive",
    StoreCommand.COMPRESSION: "this server does not support compressed gradients",
    StoreCommand.PROFILER: "this server has no profiler",
}


def _typed(pairs: Pairs, dtype: np.dtype[Any]) -> Array:
    if pairs.values.size % dtype.itemsize:
        raise MalformedFrameError(f"{pairs.values.size} bytes are no array of {dtype.name}")
    return pairs.values.view(dtype)


def _add(key: int, pushed: Array, stored: Array) -> None:
    """Add a push to the stored value."""
    stored += pushed
