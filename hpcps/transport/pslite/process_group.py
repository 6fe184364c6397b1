"""The process group of the nodes of a launch over ps-lite, whose operations collect a text from each process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import NamedTuple

import zmq

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_as
from hpcps.transport.backoff import Backoff
from hpcps.transport.process_group import LaunchedProcess, LostError, ProcessGroup
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import SCHEDULER_ID, Meta, NodeInfo, NodeRole
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.transport import APP, MESSAGE, PsliteTransport


class Text(NamedTuple):
    """The text of one process.

    Attributes:
        turn: the number of the allgather.
        rank: the rank of the process.
        launch: the fingerprint of its launch.
        text: the text.
    """

    turn: int
    rank: int
    launch: str
    text: str


class Everyone(NamedTuple):
    """The texts of all processes in one allgather.

    Attributes:
        turn: the number of the allgather.
        nodes: the node id of each rank.
        texts: the text of each rank.
    """

    turn: int
    nodes: tuple[int, ...]
    texts: tuple[str, ...]


class Texts:
    """The texts that the scheduler has collected; any thread may add one."""

    def __init__(self, launch: str, size: int) -> None:
        self._launch = launch
        self._size = size
        self._lock = Lock()
        self._nodes: dict[int, int] = {}
        self._turns: dict[int, dict[int, str]] = {}

    def add(self, node: int, sent: Text) -> tuple[str, Everyone | None]:
        """Add a text; return its problem (or an empty text), and all texts if this was the last one (else None)."""
        with self._lock:
            if sent.launch != self._launch or not 0 <= sent.rank < self._size:
                return f"node {node} is of another launch", None
            if self._nodes.setdefault(sent.rank, node) != node:
                return f"node {node} claims rank {sent.rank}, which node {self._nodes[sent.rank]} has", None
            turn = self._turns.setdefault(sent.turn, {})
            if sent.rank in turn:
                return f"rank {sent.rank} sends a second text", None
            turn[sent.rank] = sent.text
            if len(turn) < self._size:
                return "", None
            del self._turns[sent.turn]
            nodes = tuple(self._nodes[rank] for rank in range(self._size))
            return "", Everyone(sent.turn, nodes, tuple(turn[rank] for rank in range(self._size)))

    def who(self, node: int) -> int | None:
        """Return the rank of a node, or None if it has sent no text yet."""
        with self._lock:
            return next((rank for rank, id_ in self._nodes.items() if id_ == node), None)


TEXT, EVERYONE = 2, 3
"""As `head`: a text of one process, to the scheduler; the texts of all processes, from the scheduler."""

_CHECK_EVERY = 0.5
"""Seconds between two checks that the others are alive."""

_PAUSE = 0.005
"""Seconds after which a process that waits for a message checks its timeouts."""


class PsliteProcessGroup(ProcessGroup):
    """The processes of a launch as ps-lite nodes.

    All collective operations use one allgather: each process sends a text to the scheduler, which sends all texts to
    every process. The first allgather also gives every process the node id of every rank. The scheduler is one of the
    processes and has a rank like the others.

    Args:
        settings: the settings of the node.
        process: this process; texts of other launches are dropped.
        announce: called with the address of the scheduler, on the scheduler.

    Raises:
        LaunchError: the other processes did not join, or this node cannot listen.
    """

    def __init__(self, settings: Settings, process: LaunchedProcess, announce: Callable[[NodeInfo], None]) -> None:
        assert process.rank is not None, "the launcher says it"
        self.rank, self.size = process.rank, len(process.world)
        self._world, self._hosts, self._launch = process.world, process.hosts, process.launch
        self._texts = Texts(process.launch, self.size) if settings.role == NodeRole.SCHEDULER else None
        self._ids: tuple[int, ...] = ()
        self._left = False
        self._turn = 0
        self._collected: Everyone | None = None
        self._complete = Event()
        self._checked = time.monotonic()
        self._transport: PsliteTransport | None = None
        self._node = Node(settings, self._deliver, mesh=True, announce=announce)
        self._node.start()
        try:
            self._ids = self._exchange("").nodes
        except BaseException:
            self._node.abandon()
            raise
        roles = {peer: id_ for peer, id_ in zip(self._world, self._ids, strict=True) if id_ != SCHEDULER_ID}
        self._transport = PsliteTransport(self._node, roles, self._check_peers)

    @property
    def transport(self) -> PsliteTransport:
        """The transport for messages between roles."""
        assert self._transport is not None
        return self._transport

    def facts(self) -> dict[str, object]:
        """Return the version of ZeroMQ, and the addresses of the nodes."""
        nodes = {str(peer): self._node.nodes[id_] for peer, id_ in zip(self._world, self._ids, strict=True)}
        return {"zeromq": zmq.zmq_version(), "nodes": {name: f"{n.host}:{n.port}" for name, n in nodes.items()}}

    def collect(self, text: str) -> list[str]:
        return list(self._exchange(text).texts)

    def backoff(self) -> Backoff:
        # A message ends a pause, so pauses can be long.
        return Backoff(polls=0, first=_PAUSE, longest=_PAUSE, sleep=self.transport.rest)

    def settle(self) -> None:
        transport, me = self.transport, str(self._node.id)
        sent = [json.loads(text).get(me, 0) for text in self.collect(json.dumps(transport.sent_to))]
        backoff = self.backoff()
        while any(transport.received_from[id_] < count for id_, count in zip(self._ids, sent, strict=True)):
            if transport.receive() is None:
                backoff.wait()
        # No process starts the next run while another still drops the remaining messages of this run.
        self.barrier()

    def leave(self) -> None:
        self._node.stop()

    def abandon(self) -> None:
        self._left = True
        self._node.abandon()

    def _exchange(self, text: str) -> Everyone:
        """Send a text, and wait for the texts of all processes (allgather)."""
        mine, self._turn = Text(self._turn, self.rank, self._launch, text), self._turn + 1
        self._complete.clear()
        self._collected = None
        if self._texts is not None:
            self._add(SCHEDULER_ID, mine)
        else:
            self._node.send(SCHEDULER_ID, self._meta(TEXT), [json.dumps(mine).encode()])
        while not self._complete.wait(_CHECK_EVERY):
            if self._left:
                raise RunError(f"{self._world[self.rank]} has left")
            self._check_peers()
        self._node.check()
        assert self._collected is not None
        return self._collected

    def _deliver(self, delivery: Delivery) -> None:
        """Handle a delivery, in the receiving thread."""
        meta, transport = delivery.meta, self._transport
        try:
            if meta.app != APP:
                raise MalformedFrameError(f"it is of the application {meta.app}")
            if meta.head == MESSAGE and transport is not None:
                transport.accept(delivery)
            elif meta.head == TEXT and self._texts is not None and len(delivery.data) == 1:
                self._add(delivery.sender, parse_as(Text, "a text", delivery.data[0].tobytes()))
            elif meta.head == EVERYONE and delivery.sender == SCHEDULER_ID and len(delivery.data) == 1:
                self._finish(parse_as(Everyone, "a list of texts", delivery.data[0].tobytes()))
            else:
                self._node.dropped.drop("unexpected", f"node {delivery.sender} sends a message of kind {meta.head}")
        except (InputError, MalformedFrameError) as error:
            self._node.dropped.drop("malformed", str(error))

    def _add(self, node: int, sent: Text) -> None:
        assert self._texts is not None
        problem, everyone = self._texts.add(node, sent)
        if problem:
            self._node.dropped.drop("foreign", problem)
        if everyone is not None:
            for id_ in everyone.nodes:
                if id_ != SCHEDULER_ID:
                    self._node.send(id_, self._meta(EVERYONE), [json.dumps(everyone).encode()])
            self._finish(everyone)

    def _finish(self, everyone: Everyone) -> None:
        if len(everyone.nodes) != self.size or len(everyone.texts) != self.size:
            raise MalformedFrameError(f"it is no list of the texts of {self.size} processes")
        if everyone.turn == self._turn - 1:
            self._collected = everyone
            self._complete.set()

    def _meta(self, head: int) -> Meta:
        return Meta(head=head, request=True, app=APP, customer=0, timestamp=self._node.timestamp())

    def _check_peers(self) -> None:
        """Raise if a process is lost: the scheduler checks all processes, the others check the scheduler."""
        now = time.monotonic()
        if now - self._checked < _CHECK_EVERY:
            return
        self._checked = now
        self._node.check()
        if given_up := self._node.sender.given_up:
            rank = self._rank_of(next(iter(given_up)))
            raise RunError(f"messages to {'a node' if rank is None else self._world[rank]} are not acknowledged")
        for death in self._node.deaths():
            if self._texts is None and death.node.id != SCHEDULER_ID:
                continue
            rank = self._rank_of(death.node.id)
            if rank is None:
                raise RunError(str(death))
            raise LostError(self._world[rank], self._hosts[rank], death.why)

    def _rank_of(self, id_: int) -> int | None:
        if id_ in self._ids:
            return self._ids.index(id_)
        # Before the first allgather is complete, only the scheduler may know the rank.
        return None if self._texts is None else self._texts.who(id_)
