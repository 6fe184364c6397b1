"""A ps-lite node: it finds the others through the scheduler, and exchanges messages with them until all leave."""

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

from hpcps.errors import HpcpsError, LaunchError, RunError
from hpcps.transport.pslite.address import own_address
from hpcps.transport.pslite.deaths import Deaths, NodeDeath
from hpcps.transport.pslite.dropped import DroppedMessages
from hpcps.transport.pslite.encoding import MOST_BYTES, MalformedFrameError, decode, encode
from hpcps.transport.pslite.incoming import Admission, Frame
from hpcps.transport.pslite.membership import objection
from hpcps.transport.pslite.meta import (
    EMPTY,
    EVERYONE,
    SCHEDULER_ID,
    WORKERS,
    Command,
    Control,
    Meta,
    NodeInfo,
    NodeRole,
    members,
)
from hpcps.transport.pslite.scheduling import Scheduling
from hpcps.transport.pslite.sender import Receipt, Sender
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import Sockets

_log = logging.getLogger(__name__)

_LINGER = 2.0
_RECOVERY_WAIT = 0.3
_GROUPS = {WORKERS: "all workers", EVERYONE: "all nodes"}


@dataclass(frozen=True)
class Delivery:
    """A received message of an application; its data are the frames after the first, and the receiver may keep them."""

    sender: int
    meta: Meta
    data: list[Frame]


class Node:
    """One node.

    Args:
        settings: the settings of the node.
        deliver: receives the messages of the application, in the receiving thread; it must not wait for other nodes.
            Messages may arrive as soon as `start` is called.
        mesh: also connect to the nodes of the same role, which ps-lite does not.
        announce: called on a scheduler with its address, once it listens; a `root_port` of 0 becomes a free port.
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
        self.dropped = DroppedMessages()
        self.me: NodeInfo | None = None
        self.nodes: dict[int, NodeInfo] = {}
        self._deliver = deliver
        self._mesh = mesh
        self._announce = announce
        expected = settings.servers + settings.workers
        self._sockets = Sockets(self._admission, lambda reason: self.dropped.drop("foreign", reason), expected)
        self.sender = Sender(settings, self._sockets)
        self._scheduling = Scheduling(settings, self) if settings.role == NodeRole.SCHEDULER else None
        self._lock = Lock()
        self._timestamp = 0
        self._ready, self._passed, self._leaving = Event(), Event(), Event()
        self._posted: deque[Callable[[], None]] = deque()
        self._registration_reply = ""
        self._failure: BaseException | None = None
        self._deaths = Deaths(settings.heartbeat_timeout, self._sockets.incoming.closed)
        self._next_beat = time.monotonic()
        self._thread = Thread(target=self._receive, name="pslite", daemon=True)

    @property
    def id(self) -> int:
        """Its id; known once it has started."""
        assert self.me is not None
        return self.me.id

    @property
    def rank(self) -> int:
        """Its rank among the nodes of its role."""
        assert self.me is not None
        return self.me.rank

    @property
    def recovered(self) -> bool:
        """Whether it replaces a dead node."""
        return self.me is not None and self.me.is_recovery

    def timestamp(self) -> int:
        """Return the timestamp of the next request."""
        with self._lock:
            self._timestamp += 1
            return self._timestamp - 1

    def start(self) -> None:
        """Bind, register, and wait until all nodes have registered; then, unless this is a replacement, for a barrier.

        Raises:
            LaunchError: it cannot listen, or the other nodes did not register in time.
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
                self.send_control(SCHEDULER_ID, Control(Command.ADD_NODE, (self.me,)))
            self._wait(self._ready, self._registration)
            if self.recovered:
                # A C++ scheduler may inform the others after this node. Until then their answers go to the dead node,
                # and no message tells when they are informed. C++ nodes, which poll, also wait up to 0.1 s here.
                self._leaving.wait(_RECOVERY_WAIT)
            else:
                self.barrier(EVERYONE)
        except BaseException:
            self.abandon()
            raise

    def send(self, to: int, meta: Meta, data: Sequence[Any] = ()) -> Receipt:
        """Start sending a message; its data must not change until the receipt is done.

        Raises:
            RunError: there is no such node, or this one has left.
        """
        if not self._sockets.reaches(to):
            raise RunError(f"{self.me} has {'left' if self.left else f'no connection to node {to}'}")
        return self.sender.send(self.id, to, meta, data)

    def barrier(self, group: int, patient: bool = False) -> None:
        """Wait until every node of a group calls this; this node belongs to the group.

        Args:
            group: the group, or the sum of several.
            patient: wait without a timeout, as long as all nodes live or are replaced.

        Raises:
            RunError: a node did not arrive in time.
        """
        self._passed.clear()
        receipt = None
        if self._scheduling is not None:
            self._post(partial(self._scheduling.arrive, SCHEDULER_ID, group, 0))
        else:
            control = Control(Command.BARRIER, group=group)
            receipt = self.send_control(SCHEDULER_ID, control, request=True, app=0, customer=0)
        whose = _GROUPS.get(group, f"group {group}")
        self._wait(self._passed, lambda: f"not {whose} have reached the barrier{self._missing(group)}", patient)
        if receipt is not None:
            # A C++ scheduler that has just started sends no acknowledgements yet, and would count a second request.
            receipt.arrived()

    @property
    def left(self) -> bool:
        """Whether it has left the cluster."""
        return self._leaving.is_set()

    def deaths(self) -> list[NodeDeath]:
        """Return the dead nodes, the longest dead first.

        Every node detects that the connection of a peer has closed. With `heartbeat_timeout`, the scheduler also
        detects nodes that send nothing, and each node detects a scheduler that sends nothing.
        """
        return self._deaths.known(self.nodes)

    def check_deaths(self) -> None:
        """Raise if a node has been dead for longer than the timeout and no other node has replaced it.

        Raises:
            RunError: there is such a node.
        """
        timeout = self.settings.timeout
        for death in self.deaths():
            if time.monotonic() - death.since > timeout:
                raise RunError(f"{self.me}: {death}, and no other node has replaced it within {timeout:g} s")

    def stop(self, patient: bool = False) -> None:
        """Wait for all nodes, then leave.

        Args:
            patient: wait without a timeout, as long as all nodes live or are replaced.

        Raises:
            RunError: a node did not arrive in time.
        """
        try:
            self.barrier(EVERYONE, patient)
            self._linger()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave without waiting for the others."""
        if self._leaving.is_set():
            return
        self._leaving.set()
        if self._thread.is_alive() and current_thread() is not self._thread:
            self._sockets.incoming.wake()
            self._thread.join()
        self._sockets.close(_LINGER)

    def check(self) -> None:
        """Raise the failure of the receiving thread, if it has failed.

        Raises:
            LaunchError: this node cannot join the cluster.
            RunError: another error occurred.
        """
        if isinstance(self._failure, LaunchError):
            raise self._failure
        if self._failure is not None:
            raise RunError(f"{self.me} has failed: {self._failure}") from self._failure

    # Only the receiving thread and `Scheduling` call the following methods.

    def pass_barrier(self) -> None:
        """Release this node from its barrier."""
        self._passed.set()

    def alive(self, node: int) -> None:
        """Record that a node has sent a message, or is new."""
        self._deaths.alive(node)

    def send_control(self, to: int, control: Control, **fields: Any) -> Receipt:
        """Send a control message."""
        return self.send(to, replace(Meta(control=control, timestamp=self.timestamp()), **fields))

    def connect(self, nodes: Sequence[NodeInfo]) -> None:
        """Connect to nodes: at first to all of them, later to replacements."""
        assert self.me is not None
        for node in nodes:
            if node.address == self.me.address and node.role == self.me.role:
                self.me = node
        if self.me.is_recovery and not self._ready.is_set():
            # Peers may not know yet that this is a new process: its timestamps must differ from those of the dead one.
            self._timestamp = random.randrange(1 << 20, 1 << 29)
        for node in nodes:
            if node.id in self.nodes:
                self.sender.replaced(node.id)
                self._sockets.incoming.replaced(node.id)
            self.nodes[node.id] = node
            if node.id != self.id and (self._mesh or node.role != self.me.role):
                self._sockets.connect(node.id, *node.address, own_id=self.id)
        self._ready.set()
        self._sockets.incoming.resume()

    def _post(self, action: Callable[[], None]) -> None:
        """Execute an action in the receiving thread."""
        self._posted.append(action)
        self._sockets.incoming.wake()

    def _receive(self) -> None:
        try:
            while not self._leaving.is_set():
                received = self._sockets.incoming.receive(self._receive_timeout())
                while self._posted:
                    self._posted.popleft()()
                if received is not None:
                    self._take(*received)
                self._run_timers()
        except BaseException as error:
            if not self._leaving.is_set() and not isinstance(error, HpcpsError):
                _log.exception("%s has failed", self.me)
            self._failure = error
            self._ready.set()
            self._passed.set()

    def _admission(self, peer: int | None) -> Admission:
        """Return how this node treats a sender with this id."""
        if self.nodes:
            node = None if peer is None else self.nodes.get(peer)
            mine = node is not None and peer != self.id and (self._mesh or node.role != self.settings.role)
            return Admission.MEMBER if mine else Admission.STRANGER
        if self._scheduling is not None or peer is None:
            return Admission.STRANGER
        if peer == SCHEDULER_ID:
            return Admission.MEMBER
        # A node that has the scheduler's list already may send before this node has received the list.
        expected = members(EVERYONE, self.settings.servers, self.settings.workers)
        return Admission.LATER if peer in expected else Admission.STRANGER

    def _take(self, sender: int | None, frames: list[Frame]) -> None:
        try:
            if len(frames[0]) > MOST_BYTES:
                raise MalformedFrameError(f"its first frame has {len(frames[0])} bytes, more than a meta frame")
            meta = decode(frames[0].tobytes())
        except MalformedFrameError as error:
            self.dropped.drop("malformed", str(error))
            return
        control = meta.control
        if control is not None and control.command == Command.ADD_NODE:
            self._take_nodes(sender, control)
        elif sender is None or not self.nodes or self._admission(sender) is not Admission.MEMBER:
            self.dropped.drop("foreign", f"its sender is {'unknown' if sender is None else f'node {sender}'}")
        elif random.randrange(100) >= self.settings.drop_rate:
            self._take_from(sender, meta, frames[1:])

    def _take_from(self, sender: int, meta: Meta, data: list[Frame]) -> None:
        if self._scheduling is not None or sender == SCHEDULER_ID:
            self.alive(sender)
        control = meta.control
        if control is not None and control.command == Command.ACK:
            self.sender.acknowledged(sender, control.signature)
        elif self.sender.acknowledges and meta.timestamp == EMPTY:
            self.dropped.drop("malformed", "it has no timestamp to acknowledge")
        elif self.sender.acknowledge(self.id, sender, meta):
            if control is not None:
                self._handle_control(sender, meta, control)
            else:
                self._deliver(Delivery(sender, meta, data))

    def _handle_control(self, sender: int, meta: Meta, control: Control) -> None:
        if control.command == Command.BARRIER and self._scheduling is not None and meta.request:
            if sender not in members(control.group, self.settings.servers, self.settings.workers):
                self.dropped.drop("unexpected", f"node {sender} waits at the barrier of group {control.group}")
                return
            self._scheduling.arrive(sender, control.group, meta.customer)
        elif control.command == Command.BARRIER and sender == SCHEDULER_ID and not meta.request:
            self._passed.set()
        elif control.command == Command.HEARTBEAT:
            if self._scheduling is not None:
                self.send_control(sender, Control(Command.HEARTBEAT, (self.nodes[SCHEDULER_ID],)))
        else:
            self.dropped.drop("unexpected", f"node {sender} sends {control.command.name}")

    def _take_nodes(self, sender: int | None, control: Control) -> None:
        if self._scheduling is not None:
            for node in control.nodes[:1]:
                refusal, wait = self._scheduling.register(node)
                if refusal:
                    self.dropped.drop("unexpected", refusal)
                if reason := refusal or wait:
                    command = Control(Command.TERMINATE) if refusal else None
                    self._sockets.incoming.answer(encode(Meta(control=command, body=reason.encode())))
            return
        assert self.me is not None
        if sender != SCHEDULER_ID:
            self.dropped.drop("unexpected", "a list of nodes that is not from the scheduler")
        elif reason := objection(control.nodes, self.me, self.settings, first=not self.nodes):
            if not self.nodes:
                raise LaunchError(
                    f"{self.me} cannot join: the scheduler at {self._scheduler} has sent {reason}; "
                    "DMLC_NUM_SERVER and DMLC_NUM_WORKER must be the same for all nodes"
                )
            self.dropped.drop("unexpected", reason)
        else:
            self.alive(SCHEDULER_ID)
            self.connect(control.nodes)

    def _run_timers(self) -> None:
        """Do periodic work: send a heartbeat, replace dead nodes, resend messages."""
        now = time.monotonic()
        interval = self.settings.heartbeat_interval
        if interval and self._scheduling is None and self._ready.is_set() and now >= self._next_beat:
            self._next_beat = now + interval
            assert self.me is not None
            self.send_control(SCHEDULER_ID, Control(Command.HEARTBEAT, (self.me,)))
        if self._scheduling is not None:
            self._scheduling.recover()
        self.sender.send_again(self.nodes)

    def _receive_timeout(self) -> float | None:
        """Return how long the receiving thread may wait for a message before a timer may be due."""
        limits = []
        if self.sender.acknowledges:
            limits.append(self.settings.resend_timeout / 4)
        if self.settings.heartbeat_interval:
            limits.append(self.settings.heartbeat_interval / 4)
        if self._scheduling is not None and self.settings.heartbeat_timeout:
            limits.append(self.settings.heartbeat_timeout / 4)
        if self._scheduling is not None and self._sockets.incoming.closed:
            limits.append(1.0)
        return min(limits, default=None)

    def _wait(self, event: Event, missing: Callable[[], str], patient: bool = False) -> None:
        deadline = math.inf if patient else time.monotonic() + self.settings.timeout
        while not event.wait(min(1.0, max(deadline - time.monotonic(), 0.0))):
            if self._scheduling is None and not self.nodes:
                self._read_registration_reply()
            if self._leaving.is_set():
                raise RunError(f"{self.me} has left while it waited: {missing()}")
            if self._scheduling is None:
                for death in self.deaths():
                    if death.node.id == SCHEDULER_ID:
                        raise RunError(f"{self.me} waits, and {death}: {missing()}")
            elif patient:
                self.check_deaths()
            if time.monotonic() >= deadline:
                error = RunError if self.nodes else LaunchError
                raise error(f"{self.me} has waited for {self.settings.timeout:g} s: {missing()}")
        self.check()

    def _registration(self) -> str:
        if self._scheduling is not None:
            return f"not registered are {self._scheduling.registry.missing()}"
        settings = self.settings
        when = f"when {settings.servers} servers and {settings.workers} workers have registered"
        reply = self._registration_reply or f"it sends one {when}"
        return f"the scheduler at {self._scheduler} has sent no list of nodes; {reply}"

    def _read_registration_reply(self) -> None:
        """Read the reply of the scheduler to the registration of this node; only our scheduler sends one."""
        if (frame := self._sockets.answer(SCHEDULER_ID)) is None:
            return
        try:
            meta = decode(frame)
        except MalformedFrameError as error:
            self.dropped.drop("malformed", str(error))
            return
        reply = self._registration_reply = meta.body.decode(errors="replace")
        if meta.control is not None:
            raise LaunchError(f"{self.me} cannot join: the scheduler at {self._scheduler} refuses it: {reply}")

    @property
    def _scheduler(self) -> str:
        return f"{self.settings.root_host}:{self.settings.root_port}"

    def _missing(self, group: int) -> str:
        if self._scheduling is None:
            return ""
        missing = (str(self.nodes.get(id_, id_)) for id_ in self._scheduling.missing(group))
        return f"; missing: {', '.join(missing)}"

    def _linger(self) -> None:
        """Wait while others may still need a resend: a release from the barrier or an acknowledgement may be lost."""
        if not self.sender.acknowledges:
            return
        timeout = self.settings.resend_timeout
        deadline = time.monotonic() + 8 * timeout
        while time.monotonic() < deadline and self.sender.outstanding():
            self._leaving.wait(timeout / 8)
        self._leaving.wait(2 * timeout)
