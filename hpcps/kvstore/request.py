"""A request of a client to the servers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from threading import Event

import numpy as np

from hpcps.errors import RunError
from hpcps.kvstore.protocol import Bytes, Pairs
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery


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
