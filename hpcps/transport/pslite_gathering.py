"""The nodes of a launch over ps-lite, where they do something together."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from threading import Event

import numpy as np
import zmq

from hpcps.errors import RunError
from hpcps.layout import Vector
from hpcps.messages import Peer
from hpcps.transport.gathering import LostError
from hpcps.transport.patience import Patience
from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import SCHEDULER_ID, Meta, NodeInfo, NodeRole
from hpcps.transport.pslite.node import Delivery, Node
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite_texts import Everyone, Text, Texts
from hpcps.transport.pslite_transport import APP, MESSAGE, PsliteTransport

TEXT, EVERYONE = 2, 3
"""As `head`: what a process tells all, to the scheduler; what all told, from it."""

_LOOK_EVERY = 0.5
"""Seconds between two looks whether the others are alive."""

_PAUSE = 0.005
"""Seconds after which a process that waits for a message looks at its clock."""


class PsliteGathering:
    """A process of the launch: a node that knows which node is which role; see `Gathering`.

    All that processes do together is one exchange: each tells the scheduler a text, which it gives to all of them. The
    first introduces them to one another: then everyone knows the node of every rank. The scheduler is one of the
    processes, with a rank like the others.

    Args:
        settings: of its node.
        rank: its number.
        world: the role of every rank.
        hosts: the host of every rank, for messages.
        launch: names the launch, so that a stranger is none of it.
        announce: called with the scheduler's own address, where others will find it.

    Raises:
        LaunchError: the others did not come, or it cannot listen.
    """

    kind = "pslite"

    def __init__(
        self,
        settings: Settings,
        rank: int,
        world: Sequence[Peer],
        hosts: Sequence[str],
        launch: str,
        announce: Callable[[NodeInfo], None],
    ) -> None:
        self.rank, self.size = rank, len(world)
        self._world, self._hosts, self._launch = world, hosts, launch
        self._texts = Texts(launch, self.size) if settings.role == NodeRole.SCHEDULER else None
        self._ids: tuple[int, ...] = ()
        self._left = False
        self._turn = 0
        self._told: Everyone | None = None
        self._complete = Event()
        self._looked = time.monotonic()
        self._transport: PsliteTransport | None = None
        self._node = Node(settings, self._deliver, mesh=True, announce=announce)
        self._node.start()
        try:
            self._ids = self._exchange("").nodes
        except BaseException:
            self._node.abandon()
            raise
        roles = {peer: id_ for peer, id_ in zip(world, self._ids, strict=True) if id_ != SCHEDULER_ID}
        self._transport = PsliteTransport(self._node, roles, self._look)

    @property
    def transport(self) -> PsliteTransport:
        """Its end of what carries the messages between roles."""
        assert self._transport is not None
        return self._transport

    def facts(self) -> dict[str, object]:
        """Return which ZeroMQ this is, and where the nodes listen."""
        nodes = {str(peer): self._node.nodes[id_] for peer, id_ in zip(self._world, self._ids, strict=True)}
        return {"zeromq": zmq.zmq_version(), "nodes": {name: f"{n.host}:{n.port}" for name, n in nodes.items()}}

    def collect(self, text: str) -> list[str]:
        """See `Gathering.collect`."""
        return list(self._exchange(text).texts)

    def share(self, number: int) -> int:
        """See `Gathering.share`."""
        return int(self.collect(str(int(number)) if self.rank == 0 else "")[0])

    def patience(self) -> Patience:
        """See `Gathering.patience`: what comes ends a pause, so pauses can be long."""
        return Patience(polls=0, first=_PAUSE, longest=_PAUSE, sleep=self.transport.rest)

    def allocate(self, size: int) -> Vector:
        """See `Gathering.allocate`; these are no memory in common."""
        return np.empty(size, np.float32)

    def in_memory(self) -> list[Peer]:
        """See `Gathering.in_memory`: nobody."""
        return []

    def barrier(self) -> None:
        """See `Gathering.barrier`."""
        self.collect("")

    def settle(self) -> None:
        """See `Gathering.settle`."""
        transport, me = self.transport, str(self._node.id)
        sent = [json.loads(text).get(me, 0) for text in self.collect(json.dumps(transport.sent_to))]
        patience = self.patience()
        while any(transport.received_from[id_] < count for id_, count in zip(self._ids, sent, strict=True)):
            if transport.receive() is None:
                patience.wait()
        # Nobody begins the next run while another still drops what it takes for messages of this one.
        self.barrier()

    def leave(self) -> None:
        """See `Gathering.leave`."""
        self._node.stop()

    def abandon(self) -> None:
        """See `Gathering.abandon`."""
        self._left = True
        self._node.abandon()

    def _exchange(self, text: str) -> Everyone:
        """Tell a text; wait until all have."""
        mine, self._turn = Text(self._turn, self.rank, self._launch, text), self._turn + 1
        self._complete.clear()
        self._told = None
        if self._texts is not None:
            self._add(SCHEDULER_ID, mine)
        else:
            self._node.send(SCHEDULER_ID, self._meta(TEXT), [mine.encode()])
        while not self._complete.wait(_LOOK_EVERY):
            if self._left:
                raise RunError(f"{self._world[self.rank]} has left")
            self._look()
        self._node.check()
        assert self._told is not None
        return self._told

    def _deliver(self, delivery: Delivery) -> None:
        """Take in what came, in the thread that receives."""
        meta, transport = delivery.meta, self._transport
        try:
            if meta.app != APP:
                raise MalformedFrameError(f"it is of the application {meta.app}")
            if meta.head == MESSAGE and transport is not None:
                transport.accept(delivery)
            elif meta.head == TEXT and self._texts is not None and len(delivery.data) == 1:
                self._add(delivery.sender, Text.decode(delivery.data[0].bytes))
            elif meta.head == EVERYONE and delivery.sender == SCHEDULER_ID and len(delivery.data) == 1:
                self._hear(Everyone.decode(delivery.data[0].bytes, self.size))
            else:
                self._node.strays.drop("unexpected", f"node {delivery.sender} sends a message of kind {meta.head}")
        except MalformedFrameError as error:
            self._node.strays.drop("malformed", str(error))

    def _add(self, node: int, told: Text) -> None:
        assert self._texts is not None
        problem, everyone = self._texts.add(node, told)
        if problem:
            self._node.strays.drop("foreign", problem)
        if everyone is not None:
            for id_ in everyone.nodes:
                if id_ != SCHEDULER_ID:
                    self._node.send(id_, self._meta(EVERYONE), [everyone.encode()])
            self._hear(everyone)

    def _hear(self, everyone: Everyone) -> None:
        if everyone.turn == self._turn - 1:
            self._told = everyone
            self._complete.set()

    def _meta(self, head: int) -> Meta:
        return Meta(head=head, request=True, app=APP, customer=0, timestamp=self._node.timestamp())

    def _look(self) -> None:
        """Make sure that nobody is lost: the scheduler looks after all, the others after the scheduler."""
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        self._node.check()
        if given_up := self._node.courier.given_up:
            rank = self._rank_of(given_up[0])
            raise RunError(f"messages to {'somebody' if rank is None else self._world[rank]} are not acknowledged")
        silent = self._node.settings.heartbeat_timeout
        for node in self._node.dead():
            rank = self._rank_of(node.id)
            why = f"it has not been heard of for {silent:g} s"
            if rank is None:
                raise RunError(f"the {node} is lost: {why}")
            raise LostError(self._world[rank], self._hosts[rank], why)

    def _rank_of(self, id_: int) -> int | None:
        if id_ in self._ids:
            return self._ids.index(id_)
        # Before all have been introduced, the scheduler may know.
        return None if self._texts is None else self._texts.who(id_)
