"""The receiving thread of a node: it handles the messages of other nodes, and does periodic work."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread, current_thread

from hpcps.errors import HpcpsError, InputError
from hpcps.transport.process_group import DeclaredLostError
from hpcps.transport.pslite.encoding import MOST_BYTES, Admission, MalformedFrameError, decode, encode
from hpcps.transport.pslite.incoming import Frame
from hpcps.transport.pslite.membership import PROBE_EVERY, KnownNodes, NodeDeath
from hpcps.transport.pslite.meta import EMPTY, SCHEDULER_ID, Command, Control, Meta, NodeInfo, members
from hpcps.transport.pslite.scheduling import Scheduling

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """A received message of an application; its data are the frames after the first, and the receiver may keep them."""

    sender: int
    meta: Meta
    data: list[Frame]


class Receiver:
    """Receives the messages to a node until it leaves.

    Args:
        members: the nodes that it knows.
        scheduling: handles registrations and barriers, on a scheduler; else None.
        passed: is set when the barrier at which the node waits is released.
        deliver: receives the messages of the application, in the receiving thread.
        observe: is told there of dead nodes, and of nodes that have replaced them.

    Attributes:
        failure: the exception that ended the thread.
    """

    def __init__(
        self,
        members: KnownNodes,
        scheduling: Scheduling | None,
        passed: Event,
        deliver: Callable[[Delivery], None],
        observe: Callable[[NodeDeath | NodeInfo], None],
    ) -> None:
        self.failure: BaseException | None = None
        self._members = members
        self._scheduling = scheduling
        self._passed = passed
        self._deliver, self._observe = deliver, observe
        self._posted: deque[Callable[[], None]] = deque()
        self._next_beat = time.monotonic()
        # When it last looked for messages; the heartbeats that the scheduler has not answered, and what waits for that.
        self._looked = time.monotonic()
        self._unanswered = 0
        self._asked: Event | None = None
        self._asked_at = 0.0
        self._was_stopped = False
        self._thread = Thread(target=self._receive, name="pslite", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, after the node has left; the thread itself does not wait."""
        if self._thread.is_alive() and current_thread() is not self._thread:
            self._members.sockets.incoming.wake()
            self._thread.join()

    def post(self, action: Callable[[], None]) -> None:
        """Execute an action in the receiving thread."""
        self._posted.append(action)
        self._members.sockets.incoming.wake()

    @property
    def was_stopped(self) -> bool:
        """Whether it may have been stopped for so long that it counts as lost, and has not yet asked since."""
        return self._was_stopped or self._has_missed(time.monotonic())

    def ask(self) -> Event:
        """Ask the scheduler for a sign of life; return what is set when it has answered all that it was asked."""
        answered = Event()
        self.post(lambda: self._ask(answered))
        return answered

    def _ask(self, answered: Event) -> None:
        self._asked, self._asked_at, self._was_stopped = answered, time.monotonic(), False
        self._beat()

    def _has_missed(self, now: float) -> bool:
        """Return whether this thread, which looks far more often, has not looked for a considerable time."""
        silence = self._members.settings.silence
        return bool(silence) and now - self._looked > silence / 2

    def _receive(self) -> None:
        try:
            while not self._members.left.is_set():
                received = self._members.sockets.incoming.receive(self._receive_timeout())
                now = time.monotonic()
                self._was_stopped = self._was_stopped or self._has_missed(now)
                self._looked = now
                while self._posted:
                    self._posted.popleft()()
                if received is not None:
                    self._take(*received)
                self._run_timers()
        except BaseException as error:
            if not self._members.left.is_set() and not isinstance(error, HpcpsError):
                _log.exception("%s has failed", self._members.me)
            self.failure = error
            self._members.registered.set()
            self._passed.set()

    def _take(self, sender: int | None, frames: list[Frame]) -> None:
        try:
            if len(frames[0]) > MOST_BYTES:
                raise MalformedFrameError(f"its first frame has {len(frames[0])} bytes, more than a meta frame")
            meta = decode(frames[0].tobytes())
        except MalformedFrameError as error:
            self._members.dropped.drop("malformed", str(error))
            return
        control = meta.control
        if control is not None and control.command == Command.ADD_NODE:
            self._take_nodes(sender, control)
        elif sender is None or not self._members.nodes or self._members.admission(sender) is not Admission.MEMBER:
            self._members.dropped.drop("foreign", f"its sender is {'unknown' if sender is None else f'node {sender}'}")
        elif random.randrange(100) >= self._members.settings.drop_rate:
            self._take_from(sender, meta, frames[1:])

    def _take_from(self, sender: int, meta: Meta, data: list[Frame]) -> None:
        if self._scheduling is not None or sender == SCHEDULER_ID:
            self._members.deaths.alive(sender)
        control = meta.control
        if control is not None and control.command == Command.ACK:
            self._members.sender.resender.acknowledged(sender, control.signature)
        elif self._members.sender.acknowledges and meta.timestamp == EMPTY:
            self._members.dropped.drop("malformed", "it has no timestamp to acknowledge")
        elif self._members.sender.acknowledge(self._members.id, sender, meta):
            if control is not None:
                self._handle_control(sender, meta, control)
            else:
                self._deliver(Delivery(sender, meta, data))

    def _handle_control(self, sender: int, meta: Meta, control: Control) -> None:
        if control.command == Command.BARRIER and self._scheduling is not None and meta.request:
            if sender not in members(control.group, self._members.settings.servers, self._members.settings.workers):
                self._members.dropped.drop("unexpected", f"node {sender} waits at the barrier of group {control.group}")
                return
            self._scheduling.arrive(sender, control.group, meta.customer)
        elif control.command == Command.BARRIER and sender == SCHEDULER_ID and not meta.request:
            self._passed.set()
        elif control.command == Command.HEARTBEAT:
            if self._scheduling is not None:
                self._members.send_control(sender, Control(Command.HEARTBEAT, (self._members.nodes[SCHEDULER_ID],)))
            elif sender == SCHEDULER_ID and meta.body:
                try:
                    for death in self._members.deaths.announce(meta.body):
                        if self._members.deaths.final(death.node.id):
                            self._members.sockets.incoming.suspend(death.node.id)
                        self._observe(death)
                except InputError as error:
                    self._members.dropped.drop("malformed", str(error))
            elif sender == SCHEDULER_ID:
                self._unanswered -= 1
                if not self._unanswered and self._asked is not None:
                    self._asked.set()
        elif control.command == Command.TERMINATE and sender == SCHEDULER_ID:
            raise DeclaredLostError("it was silent for so long that it counts as lost; it ends, and is replaced")
        else:
            self._members.dropped.drop("unexpected", f"node {sender} sends {control.command.name}")

    def _take_nodes(self, sender: int | None, control: Control) -> None:
        if self._scheduling is not None:
            for node in control.nodes[:1]:
                refusal, wait = self._scheduling.register(node)
                if refusal:
                    self._members.dropped.drop("unexpected", refusal)
                if reason := refusal or wait:
                    command = Control(Command.TERMINATE) if refusal else None
                    self._members.sockets.incoming.answer(encode(Meta(control=command, body=reason.encode())))
            return
        for node in self._members.take_list(sender, control):
            self._observe(node)

    def _run_timers(self) -> None:
        """Do periodic work: send a heartbeat, replace dead nodes, resend messages."""
        now = time.monotonic()
        interval = self._members.settings.heartbeat_interval
        if interval and self._scheduling is None and self._members.registered.is_set() and now >= self._next_beat:
            self._next_beat = now + interval
            self._beat()
        if self._scheduling is not None:
            self._scheduling.recover()
        self._members.sender.send_again(self._members.nodes)

    def _beat(self) -> None:
        assert self._members.me is not None
        now = time.monotonic()
        if (
            self._asked is not None
            and not self._asked.is_set()
            and now - self._asked_at > self._members.settings.silence
        ):
            # The answers until now have come, or are lost with a connection.
            self._unanswered, self._asked_at = 0, now
        self._unanswered += 1
        self._members.send_control(SCHEDULER_ID, Control(Command.HEARTBEAT, (self._members.me,)))

    def _receive_timeout(self) -> float | None:
        """Return how long the receiving thread may wait for a message before a timer may be due."""
        limits = []
        if self._members.sender.acknowledges:
            limits.append(self._members.settings.resend_timeout / 4)
        if self._members.settings.heartbeat_interval:
            limits.append(self._members.settings.heartbeat_interval / 4)
        if self._scheduling is not None:
            settings, closed = self._members.settings, self._members.sockets.incoming.closed
            limits += [each / 4 for each in (settings.heartbeat_timeout, settings.silence) if each]
            limits += [PROBE_EVERY if settings.replaceable & closed.keys() else 1.0] if closed else []
        return min(limits, default=None)
