"""A ps-lite node: finds the others through the scheduler, and exchanges messages with them until all leave."""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event, Lock, Thread, current_thread
from typing import Any

import zmq

from hpcps.errors import LaunchError, RunError
from hpcps.transport.pslite.address import own_address
from hpcps.transport.pslite.courier import Courier, Receipt
from hpcps.transport.pslite.encoding import MOST_BYTES, MalformedFrameError, decode
from hpcps.transport.pslite.membership import objection
from hpcps.transport.pslite.meta import (
    EMPTY,
    EVERYONE,
    SCHEDULER_ID,
    Command,
    Control,
    Meta,
    NodeInfo,
    NodeRole,
    members,
)
from hpcps.transport.pslite.scheduling import Scheduling
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import Sockets
from hpcps.transport.pslite.strays import Strays

_log = logging.getLogger(__name__)

_LINGER = 2.0
_INTRODUCTION = 0.3
_EARLY = 1024


@dataclass(frozen=True)
class Delivery:
    """A message of an application that came; its data are the frames after the first, for the receiver to keep."""

    sender: int
    meta: Meta
    data: list[zmq.Frame]


class Node:
    """One node.

    Args:
        settings: what it is and where the scheduler is.
        deliver: gets the messages of the application, in the thread that receives; it must not wait for others.
            Messages of other nodes may come as soon as `start` is called.
        mesh: also connect to the nodes of the same role, which ps-lite does not.
        announce: called once a scheduler listens, with its address: of a `root_port` of 0 it makes one that is free.
    """

    def __init__(
        self,
        settings: Settings,
        deliver: Callable[[Delivery], None],
        *,
        mesh: bool = False,
        announce: Callable[[NodeInfo], None] = lambda me: None,
    ) -> None:
        self.settings = settings
        self.strays = Strays()
        self.me: NodeInfo | None = None
        self.nodes: dict[int, NodeInfo] = {}
        self._deliver = deliver
        self._mesh = mesh
        self._announce = announce
        self._sockets = Sockets()
        self.courier = Courier(settings, self._sockets)
        self._scheduling = Scheduling(settings, self) if settings.role == NodeRole.SCHEDULER else None
        self._lock = Lock()
        self._timestamp = 0
        self._ready, self._passed, self._leaving = Event(), Event(), Event()
        self._posted: deque[Callable[[], None]] = deque()
        self._early: deque[tuple[int, list[zmq.Frame]]] = deque(maxlen=_EARLY)
        self._failure: BaseException | None = None
        self._heard = time.monotonic()
        self._next_beat = self._heard
        self._thread = Thread(target=self._receive, name="pslite", daemon=True)

    @property
    def id(self) -> int:
        """Its id; known once it has started."""
        assert self.me is not None
        return self.me.id

    @property
    def rank(self) -> int:
        """Its place among the nodes of its role."""
        assert self.me is not None
        return self.me.rank

    @property
    def recovered(self) -> bool:
        """Whether it took the place of a node that died."""
        return self.me is not None and self.me.is_recovery

    def timestamp(self) -> int:
        """Number the next request."""
        with self._lock:
            self._timestamp += 1
            return self._timestamp - 1

    def start(self) -> None:
        """Bind, register, and wait until all nodes have; then, unless it replaces a dead node, for all of them.

        Raises:
            LaunchError: it cannot listen, or the others did not come in time.
        """
        settings = self.settings
        scheduler = NodeInfo(NodeRole.SCHEDULER, settings.root_host, settings.root_port, SCHEDULER_ID)
        try:
            if self._scheduling is not None:
                _, bind_to = own_address(settings.root_host, settings.interface, settings.root_host)
                self.me = replace(scheduler, port=self._sockets.bind(bind_to, settings.root_port))
                self._thread.start()
                self._announce(self.me)
            else:
                host, bind_to = own_address(settings.host, settings.interface, settings.root_host)
                port = self._sockets.bind(bind_to, settings.port)
                self.me = NodeInfo(settings.role, host, port)
                self._sockets.connect(SCHEDULER_ID, *scheduler.address, own_id=None)
                self._thread.start()
                self._send_control(SCHEDULER_ID, Control(Command.ADD_NODE, (self.me,)))
            self._wait(self._ready, self._registration)
            if self.recovered:
                # A C++ scheduler may tell the others later than this node, nothing says when they know, and what they
                # answer until then goes to the dead node. C++ nodes, which poll, wait up to 0.1 s here too.
                self._leaving.wait(_INTRODUCTION)
            else:
                self.barrier(EVERYONE)
        except BaseException:
            self.abandon()
            raise

    def send(self, to: int, meta: Meta, data: Sequence[Any] = ()) -> Receipt:
        """Begin to send a message; its data must not change until the receipt says so.

        Raises:
            RunError: there is no such node.
        """
        if not self._sockets.reaches(to):
            raise RunError(f"{self.me} has no connection to node {to}")
        return self.courier.send(self.id, to, meta, data)

    def barrier(self, group: int, patient: bool = False) -> None:
        """Wait until every node of a group, to which this one belongs, waits here.

        Args:
            group: the group, or the sum of several.
            patient: wait as long as it takes.

        Raises:
            RunError: they did not come in time.
        """
        self._passed.clear()
        receipt = None
        if self._scheduling is not None:
            self._post(partial(self._scheduling.arrive, SCHEDULER_ID, group, 0))
        else:
            control = Control(Command.BARRIER, group=group)
            receipt = self._send_control(SCHEDULER_ID, control, request=True, app=0, customer=0)
        self._wait(self._passed, lambda: f"the barrier of group {group} is not passed{self._missing(group)}", patient)
        if receipt is not None:
            # A C++ scheduler that has just started acknowledges nothing yet, and would count a second request.
            receipt.arrived()

    def dead(self) -> list[NodeInfo]:
        """Return who has been silent for too long, the longest first.

        The scheduler hears of all nodes, a node of the scheduler only. Without `heartbeat_timeout` nobody counts as
        dead.
        """
        if self._scheduling is not None:
            return [self.nodes[id_] for id_ in self._scheduling.dead()]
        limit = self.settings.heartbeat_timeout
        return [self.nodes[SCHEDULER_ID]] if limit and time.monotonic() - self._heard > limit else []

    def stop(self, patient: bool = False) -> None:
        """Wait for all nodes, then leave.

        Args:
            patient: wait as long as it takes.

        Raises:
            RunError: they did not come in time.
        """
        try:
            self.barrier(EVERYONE, patient)
            self._see_off()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave without waiting for the others."""
        if self._leaving.is_set():
            return
        self._leaving.set()
        if self._thread.is_alive() and current_thread() is not self._thread:
            self._sockets.ring()
            self._thread.join()
        self._sockets.close(_LINGER)

    def check(self) -> None:
        """Raise what went wrong in the thread that receives, if anything did.

        Raises:
            RunError: something did.
        """
        if self._failure is not None:
            raise RunError(f"{self.me} has failed: {self._failure}") from self._failure

    # What follows is for the node's own thread and for the scheduler's part.

    def pass_barrier(self) -> None:
        """The barrier that this node waits at is passed."""
        self._passed.set()

    def tell(self, to: int, control: Control, **fields: Any) -> None:
        """Send a control message."""
        self._send_control(to, control, **fields)

    def enter(self, nodes: Sequence[NodeInfo]) -> None:
        """Connect to nodes: all of them at first, later those that came back."""
        assert self.me is not None
        for node in nodes:
            if node.address == self.me.address and node.role == self.me.role:
                self.me = node
        if self.me.is_recovery and not self._ready.is_set():
            # Peers may not know yet that this is another process: it must not number its messages as the dead one did.
            self._timestamp = random.randrange(1 << 20, 1 << 29)
        for node in nodes:
            if node.id in self.nodes:
                self.courier.replaced(node.id)
            self.nodes[node.id] = node
            if node.id != self.id and (self._mesh or node.role != self.me.role):
                self._sockets.connect(node.id, *node.address, own_id=self.id)
        self._ready.set()

    def _post(self, action: Callable[[], None]) -> None:
        """Have the receiving thread do something."""
        self._posted.append(action)
        self._sockets.ring()

    def _receive(self) -> None:
        try:
            while not self._leaving.is_set():
                came = self._sockets.receive(self._patience())
                while self._posted:
                    self._posted.popleft()()
                if came is not None:
                    self._take(*came)
                self._tend()
        except BaseException as error:
            if not self._leaving.is_set():
                _log.exception("%s has failed", self.me)
            self._failure = error
            self._ready.set()
            self._passed.set()

    def _take(self, sender: int | None, frames: list[zmq.Frame]) -> None:
        try:
            if not frames or len(frames[0]) > MOST_BYTES:
                raise MalformedFrameError("it has no frame of a size that says what it is")
            meta = decode(frames[0].bytes)
        except MalformedFrameError as error:
            self.strays.drop("malformed", str(error))
            return
        control = meta.control
        if control is not None and control.command == Command.ADD_NODE:
            self._take_nodes(sender, control)
        elif sender is not None and not self._ready.is_set() and self._scheduling is None:
            # Who knows this node already, from the scheduler, may speak before the scheduler's word is here.
            self._early.append((sender, frames))
        elif sender is None or sender not in self.nodes:
            self.strays.drop("foreign", f"its sender is {'nobody' if sender is None else f'node {sender}'}")
        elif random.randrange(100) >= self.settings.drop_rate:
            self._take_from(sender, meta, frames[1:])

    def _take_from(self, sender: int, meta: Meta, data: list[zmq.Frame]) -> None:
        if self._scheduling is not None:
            self._scheduling.heard(sender)
        elif sender == SCHEDULER_ID:
            self._heard = time.monotonic()
        control = meta.control
        if control is not None and control.command == Command.ACK:
            self.courier.acknowledged(sender, control.signature)
        elif self.courier.acknowledges and meta.timestamp == EMPTY:
            self.strays.drop("malformed", "it has no timestamp to acknowledge")
        elif self.courier.acknowledge(self.id, sender, meta):
            if control is not None:
                self._obey(sender, meta, control)
            else:
                self._deliver(Delivery(sender, meta, data))

    def _obey(self, sender: int, meta: Meta, control: Control) -> None:
        if control.command == Command.BARRIER and self._scheduling is not None and meta.request:
            if sender not in members(control.group, self.settings.servers, self.settings.workers):
                self.strays.drop("unexpected", f"node {sender} waits at the barrier of group {control.group}")
                return
            self._scheduling.arrive(sender, control.group, meta.customer)
        elif control.command == Command.BARRIER and sender == SCHEDULER_ID and not meta.request:
            self._passed.set()
        elif control.command == Command.HEARTBEAT:
            if self._scheduling is not None:
                self._send_control(sender, Control(Command.HEARTBEAT, (self.nodes[SCHEDULER_ID],)))
        else:
            self.strays.drop("unexpected", f"node {sender} sends {control.command.name}")

    def _take_nodes(self, sender: int | None, control: Control) -> None:
        if self._scheduling is not None:
            for node in control.nodes[:1]:
                if refusal := self._scheduling.register(node):
                    self.strays.drop("unexpected", refusal)
            return
        assert self.me is not None
        reason = None if sender == SCHEDULER_ID else "a list of nodes that is not from the scheduler"
        if reason := reason or objection(control.nodes, self.me, self.settings, first=not self._ready.is_set()):
            self.strays.drop("unexpected", reason)
            return
        self._heard = time.monotonic()
        self.enter(control.nodes)
        while self._early:
            self._take(*self._early.popleft())

    def _tend(self) -> None:
        """Do what is due: send a heartbeat, send messages again."""
        now = time.monotonic()
        interval = self.settings.heartbeat_interval
        if interval and self._scheduling is None and self._ready.is_set() and now >= self._next_beat:
            self._next_beat = now + interval
            assert self.me is not None
            self._send_control(SCHEDULER_ID, Control(Command.HEARTBEAT, (self.me,)))
        if self._scheduling is not None:
            self._scheduling.tend()
        self.courier.send_again(self.nodes)

    def _patience(self) -> float | None:
        """How long the receiving thread may wait for a message: something else may be due."""
        limits = []
        if self.courier.acknowledges:
            limits.append(self.settings.resend_timeout / 4)
        if self.settings.heartbeat_interval:
            limits.append(self.settings.heartbeat_interval / 4)
        if self._scheduling is not None and self.settings.heartbeat_timeout:
            limits.append(self.settings.heartbeat_timeout / 4)
        return min(limits, default=None)

    def _send_control(self, to: int, control: Control, **fields: Any) -> Receipt:
        return self.send(to, replace(Meta(control=control, timestamp=self.timestamp()), **fields))

    def _wait(self, event: Event, missing: Callable[[], str], patient: bool = False) -> None:
        deadline = math.inf if patient else time.monotonic() + self.settings.timeout
        while not event.wait(min(1.0, max(deadline - time.monotonic(), 0.0))):
            if self._leaving.is_set():
                raise RunError(f"{self.me} has left while it waited: {missing()}")
            if dead := self.dead() if self._scheduling is None and self.nodes else []:
                raise RunError(f"{self.me} waits, and has not heard of the {dead[0]}: {missing()}")
            if time.monotonic() >= deadline:
                raise LaunchError(f"{self.me} has waited for {self.settings.timeout:.0f} s: {missing()}")
        self.check()

    def _registration(self) -> str:
        if self._scheduling is not None:
            return f"not registered are {self._scheduling.registry.missing()}"
        settings = self.settings
        return (
            f"the scheduler at {settings.root_host}:{settings.root_port} has sent no list of nodes; "
            f"it does when {settings.servers} servers and {settings.workers} workers have registered"
        )

    def _missing(self, group: int) -> str:
        if self._scheduling is None:
            return ""
        missing = (str(self.nodes.get(id_, id_)) for id_ in self._scheduling.missing(group))
        return f"; not there are {', '.join(missing)}"

    def _see_off(self) -> None:
        """Stay while others may still need an answer: what told them to leave, or an acknowledgement, may be lost."""
        if not self.courier.acknowledges:
            return
        patience = self.settings.resend_timeout
        deadline = time.monotonic() + 8 * patience
        while time.monotonic() < deadline and self.courier.outstanding():
            self._leaving.wait(patience / 8)
        self._leaving.wait(2 * patience)
