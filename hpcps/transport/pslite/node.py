"""A ps-lite node: it finds the others through the scheduler, and exchanges messages with them until all leave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

from hpcps.errors import LaunchError, RunError
from hpcps.transport.process_group import DeclaredLostError
from hpcps.transport.pslite.encoding import MalformedFrameError, decode
from hpcps.transport.pslite.membership import KnownNodes, NodeDeath
from hpcps.transport.pslite.meta import EVERYONE, SCHEDULER_ID, WORKERS, Command, Control, Meta, NodeInfo, NodeRole
from hpcps.transport.pslite.receiver import Delivery, Receiver
from hpcps.transport.pslite.scheduling import Scheduling
from hpcps.transport.pslite.sender import Receipt
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import own_address

_LINGER = 2.0
_LOOK_EVERY = 0.5
_RECOVERY_WAIT = 0.3
_GROUPS = {WORKERS: "all workers", EVERYONE: "all nodes"}


class Node:
    """One node.

    Args:
        settings: the settings of the node.
        deliver: receives the messages of the application, in the receiving thread; it must not wait for other nodes.
            Messages may arrive as soon as `start` is called.
        mesh: also connect to the nodes of the same role, which ps-lite does not.
        announce: called on a scheduler with its address, once it listens; a `root_port` of 0 becomes a free port.
        observe: is told, in the receiving thread, which nodes the scheduler has declared dead, and which nodes have
            replaced them.
        interrupt: called again and again while this node waits for others; what it raises ends this.
    """

    def __init__(
        self,
        settings: Settings,
        deliver: Callable[[Delivery], None],
        *,
        mesh: bool = False,
        announce: Callable[[NodeInfo], None] = lambda me: None,
        observe: Callable[[NodeDeath | NodeInfo], None] = lambda change: None,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings, self._interrupt = settings, interrupt
        self._members = members = KnownNodes(settings, mesh=mesh)
        self.dropped, self.nodes, self.sender = members.dropped, members.nodes, members.sender
        self._announce = announce
        self._passed = Event()
        self._scheduling = Scheduling(settings, members, self._passed.set, observe) if members.schedules else None
        self._receiver = Receiver(members, self._scheduling, self._passed, deliver, observe)
        self._registration_reply = ""

    @property
    def me(self) -> NodeInfo | None:
        """This node; known once it listens."""
        return self._members.me

    @property
    def id(self) -> int:
        """Its id; known once it has started."""
        return self._members.id

    @property
    def rank(self) -> int:
        """Its rank among the nodes of its role."""
        assert self.me is not None
        return self.me.rank

    @property
    def recovered(self) -> bool:
        """Whether it replaces a dead node."""
        return self.me is not None and self.me.is_recovery

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
                self._members.me = me = replace(scheduler, port=self._members.sockets.bind(bind_to, settings.root_port))
                self._receiver.start()
                self._announce(me)
            else:
                host, bind_to = own_address(settings.host, settings.interface, settings.root_host)
                port = self._members.sockets.bind(bind_to, settings.port)
                wanted, incarnation = settings.wanted, settings.incarnation
                self._members.me = me = NodeInfo(settings.role, host, port, wanted=wanted, incarnation=incarnation)
                self._members.sockets.connect(SCHEDULER_ID, *scheduler.address, own_id=None)
                self._receiver.start()
                self._members.send_control(SCHEDULER_ID, Control(Command.ADD_NODE, (me,)))
            self._wait(self._members.registered, self._registration)
            if self.recovered:
                # A C++ scheduler may inform the others after this node. Until then their answers go to the dead node,
                # and no message tells when they are informed. C++ nodes, which poll, also wait up to 0.1 s here.
                self._members.left.wait(_RECOVERY_WAIT)
            else:
                self.barrier(EVERYONE)
        except BaseException:
            self.abandon()
            raise

    def post(self, action: Callable[[], None]) -> None:
        """Execute an action in the receiving thread, in turn with the messages that it handles."""
        self._receiver.post(action)

    def confirmed(self) -> Event | None:
        """Return what is set once the scheduler has confirmed that this node is alive; None if it need not be asked.

        A node is told of its death before that, as `check` says. It need not ask unless it may have been stopped.
        """
        return self._receiver.ask() if self._receiver.was_stopped else None

    def timestamp(self) -> int:
        """Return the timestamp of the next request."""
        return self._members.timestamp()

    def send(self, to: int, meta: Meta, data: Sequence[Any] = ()) -> Receipt:
        """Start sending a message; its data must not change until the receipt is done.

        Raises:
            RunError: there is no such node, or this one has left.
        """
        return self._members.send(to, meta, data)

    def barrier(self, group: int, without_timeout: bool = False) -> None:
        """Wait until every node of a group calls this; this node belongs to the group.

        Args:
            group: the group, or the sum of several.
            without_timeout: wait without a timeout, as long as all nodes live or are replaced.

        Raises:
            RunError: a node did not arrive in time.
        """
        self._passed.clear()
        receipt = None
        if self._scheduling is not None:
            self._receiver.post(partial(self._scheduling.arrive, SCHEDULER_ID, group, 0))
        else:
            control = Control(Command.BARRIER, group=group)
            receipt = self._members.send_control(SCHEDULER_ID, control, request=True, app=0, customer=0)
        whose = _GROUPS.get(group, f"group {group}")
        self._wait(self._passed, lambda: f"not {whose} have reached the barrier{self._missing(group)}", without_timeout)
        if receipt is not None:
            # A C++ scheduler that has just started sends no acknowledgements yet, and would count a second request.
            receipt.arrived()

    @property
    def left(self) -> bool:
        """Whether it has left the cluster."""
        return self._members.left.is_set()

    def deaths(self) -> list[NodeDeath]:
        """Return the dead nodes, the longest dead first.

        Every node detects that the connection of a peer has closed. With `heartbeat_timeout`, the scheduler also
        detects nodes that send nothing, and each node detects a scheduler that sends nothing. The scheduler announces
        dead nodes to the others; a C++ scheduler does not.
        """
        return self._members.deaths.known()

    def described_deaths(self) -> str:
        """Describe the dead nodes, the longest dead first, because others end without it; empty if there are none."""
        return "; ".join(map(str, self.deaths()))

    def is_cut_off(self) -> bool:
        """Tell whether this node should not wait any longer: the scheduler is dead, or, for a worker, any server.

        With a server, values are lost. The other workers that wait for it end, so other servers may wait for these.
        """
        needed = (
            {NodeRole.SCHEDULER, NodeRole.SERVER} if self.settings.role == NodeRole.WORKER else {NodeRole.SCHEDULER}
        )
        return any(death.node.role in needed for death in self.deaths())

    def check_deaths(self) -> None:
        """Raise if a node has been dead for longer than the timeout and no other node has replaced it.

        Raises:
            RunError: there is such a node.
        """
        timeout = self.settings.timeout
        for death in self.deaths():
            if time.monotonic() - death.since > timeout:
                raise RunError(f"{self.me}: {death}, and no other node has replaced it within {timeout:g} s")

    def stop(self, without_timeout: bool = False) -> None:
        """Wait for all nodes, then leave.

        Args:
            without_timeout: wait without a timeout, as long as all nodes live or are replaced.

        Raises:
            RunError: a node did not arrive in time.
        """
        try:
            self.barrier(EVERYONE, without_timeout)
            self._linger()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave without waiting for the others."""
        if self._members.left.is_set():
            return
        self._members.left.set()
        self._receiver.join()
        self._members.close(_LINGER)

    def check(self) -> None:
        """Raise the failure of the receiving thread, if it has failed.

        Raises:
            LaunchError: this node cannot join the cluster.
            DeclaredLostError: the others go on without it.
            RunError: another error occurred, or the node has left.
        """
        if self._members.left.is_set():
            raise RunError(f"{self.me} has left")
        if isinstance(self._receiver.failure, (LaunchError, DeclaredLostError)):
            raise self._receiver.failure
        if self._receiver.failure is not None:
            raise RunError(f"{self.me} has failed: {self._receiver.failure}") from self._receiver.failure

    def _wait(self, event: Event, missing: Callable[[], str], without_timeout: bool = False) -> None:
        deadline = math.inf if without_timeout else time.monotonic() + self.settings.timeout
        while not event.wait(min(_LOOK_EVERY, max(deadline - time.monotonic(), 0.0))):
            self._interrupt()
            if self._scheduling is None and not self.nodes:
                self._read_registration_reply()
            if self._members.left.is_set():
                raise RunError(f"{self.me} has left while it waited: {missing()}")
            if self._scheduling is None:
                if self.is_cut_off():
                    raise RunError(f"{self.me} waits, and {self.described_deaths()}: {missing()}")
            elif without_timeout:
                self.check_deaths()
            if time.monotonic() >= deadline:
                error = RunError if self.nodes else LaunchError
                waited = f"{self.me} has waited for {self.settings.timeout:g} s: {missing()}"
                raise error("; ".join(filter(None, (waited, self.described_deaths()))))
        self.check()

    def _registration(self) -> str:
        if self._scheduling is not None:
            return f"not registered are {self._scheduling.registry.missing()}"
        settings = self.settings
        when = f"when {settings.servers} servers and {settings.workers} workers have registered"
        reply = self._registration_reply or f"it sends one {when}"
        return f"the scheduler at {self._members.scheduler} has sent no list of nodes; {reply}"

    def _read_registration_reply(self) -> None:
        """Read the reply of the scheduler to the registration of this node; only our scheduler sends one."""
        if (frame := self._members.sockets.answer(SCHEDULER_ID)) is None:
            return
        try:
            meta = decode(frame)
        except MalformedFrameError as error:
            self.dropped.drop("malformed", str(error))
            return
        reply = self._registration_reply = meta.body.decode(errors="replace")
        if meta.control is not None:
            raise LaunchError(f"{self.me} cannot join: the scheduler at {self._members.scheduler} refuses it: {reply}")

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
        while time.monotonic() < deadline and self.sender.resender.outstanding():
            self._members.left.wait(timeout / 8)
        self._members.left.wait(2 * timeout)
