"""A transport of your own: `plugins = ["./my_transport.py"]` and `transport.kind = "my_transport"`.

Messages of processes of one host go through queues, which the process with rank 0 serves to the others.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.managers import BaseManager
from queue import Empty, Queue
from threading import Thread
from typing import Any, Literal

import numpy as np

from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed
from hpcps.transport import LaunchedProcess, ProcessGroup, ProcessTransport
from hpcps.transport.base import MessageTransport, Traffic


class MyTransport(ProcessTransport):
    """Queues that one process serves, for the processes of one host."""

    offers = frozenset({"processes"})

    kind: Literal["my_transport"] = "my_transport"

    @contextmanager
    def group(self, process: LaunchedProcess) -> Iterator[ProcessGroup]:
        """Serve the queues, or find the process that does."""
        assert process.rank is not None, "the launcher says it"
        if process.rank == 0:
            server = _Queues(("127.0.0.1", 0), process.launch.encode()).get_server()
            Thread(target=server.serve_forever, daemon=True).start()
            process.rendezvous.announce(*server.address)
            find = _queue  # a client in the process of its server may wait for itself in a garbage collection
        else:
            queues = _Queues(process.rendezvous.find(60), process.launch.encode())
            queues.connect()
            find = queues.queue  # type: ignore[attr-defined]
        try:
            yield _Group(find, process)
        finally:
            if process.rank == 0:
                process.rendezvous.clear()


class _Queues(BaseManager):
    """Finds a queue by its name."""


_QUEUES: dict[str, Queue[Any]] = {}


def _queue(name: str) -> Queue[Any]:
    return _QUEUES.setdefault(name, Queue())


_Queues.register("queue", _queue)


class _Group(ProcessGroup):
    """The processes that use the queues."""

    def __init__(self, find: Callable[[str], Any], process: LaunchedProcess) -> None:
        self.rank, self.size = process.rank, len(process.world)
        self._texts = [find(f"text of {rank}") for rank in range(self.size)]
        self._answers = [find(f"texts for {rank}") for rank in range(self.size)]
        self._messages = _Messages(process.world, self.rank, find)

    @property
    def transport(self) -> MessageTransport:
        return self._messages

    def collect(self, text: str) -> list[str]:
        self._texts[self.rank].put(text)
        if self.rank == 0:
            texts = [queue.get() for queue in self._texts]
            for queue in self._answers:
                queue.put(texts)
        return list(self._answers[self.rank].get())

    def settle(self) -> None:
        self.barrier()  # all messages are in their queues
        while self._messages.receive() is not None:
            pass
        self.barrier()

    def leave(self) -> None:
        self.barrier()
        if self.rank == 0:  # it serves the queues until the others have left
            for queue in self._texts[1:]:
                queue.get()
        else:
            with suppress(EOFError, ConnectionError):  # the server may end before it answers
                self._texts[self.rank].put("I leave")


class _Messages(MessageTransport):
    """The messages of one process."""

    def __init__(self, world: tuple[Peer, ...], rank: int, find: Callable[[str], Any]) -> None:
        self._me = world[rank]
        self._boxes = {peer: find(f"messages to {peer}") for peer in world}
        self.traffic = Traffic()

    def send(self, to: Peer, envelope: Envelope) -> None:
        payload = None if envelope.payload is None or not envelope.payload.size else envelope.payload.tobytes()
        self._boxes[to].put((self._me, envelope.header, payload))
        self.traffic.sent += len(envelope.header) + envelope.payload_bytes

    def receive(self) -> Delivered | Malformed | None:
        try:
            source, header, payload = self._boxes[self._me].get_nowait()
        except Empty:
            return None
        self.traffic.received += len(header) + len(payload or b"")
        try:
            values = None if payload is None else np.frombuffer(payload, "f4")
            return Delivered(source, Envelope.decode(header, values))
        except MalformedMessageError as error:
            return Malformed(source, str(error))
