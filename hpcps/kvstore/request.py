"""What a client has asked the servers and waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from threading import Event

import numpy as np

from hpcps.errors import RunError
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.node import Delivery, Node
from hpcps.transport.pslite.payload import Bytes, Pairs


class Request:
    """A request to one or more servers, under way.

    Args:
        node: who asks.
        what: what is asked for, for people.
        servers: the ids of the servers that are to answer.
        targets: of a pull, where each server's bytes go.
    """

    def __init__(
        self, node: Node, what: str, servers: Iterable[int], targets: Mapping[int, Bytes] | None = None
    ) -> None:
        self._node = node
        self._what = what
        self._open = set(servers)
        self._targets = targets or {}
        self._done = Event()
        self._problem = ""

    def take(self, delivery: Delivery) -> bool:
        """Take in an answer; say whether it was the last one. Runs in the thread that receives."""
        if delivery.sender not in self._open:
            raise MalformedFrameError(f"node {delivery.sender} answers what it was not asked")
        target = self._targets.get(delivery.sender)
        if target is not None:
            values = Pairs.read(delivery.data).values
            if values.size == target.size:
                np.copyto(target, values)
            else:
                server = self._node.nodes[delivery.sender]
                there = f"{values.size} bytes, not {target.size}" if values.size else "no such key"
                self._problem = f"{self._what}: the {server} has {there}"
        self._open.discard(delivery.sender)
        if not self._open:
            self._done.set()
        return self._done.is_set()

    def wait(self) -> None:
        """Wait until all servers have answered.

        Raises:
            RunError: a server has not answered in time, or not with what was asked for.
        """
        timeout = self._node.settings.timeout
        deadline = time.monotonic() + timeout
        while not self._done.wait(min(1.0, max(deadline - time.monotonic(), 0.0))):
            self._node.check()
            if dead := self._node.dead():
                raise RunError(f"{self._what}: the {dead[0]} is dead")
            if time.monotonic() >= deadline:
                silent = ", ".join(str(self._node.nodes[id_]) for id_ in sorted(self._open))
                raise RunError(f"{self._what}: no answer within {timeout:g} s from the {silent}")
        if self._problem:
            raise RunError(self._problem)
