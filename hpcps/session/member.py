"""A member of a session: one process, its aggregator and its participant, over any transport."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from hpcps.errors import HpcpsError, RunError, message_of, text_of
from hpcps.numerics.layout import Allocate
from hpcps.protocol.envelope import Delivered, Envelopes
from hpcps.protocol.messages import (
    Abort,
    Alive,
    AllJoined,
    AskAlive,
    Failed,
    Given,
    Joined,
    Leave,
    Message,
    Missing,
    Peer,
    TensorResult,
    TensorUpdate,
)
from hpcps.protocol.received import Malformed, Received
from hpcps.roles.events import Now, Send
from hpcps.session.aggregator import Aggregator
from hpcps.session.buckets import ID
from hpcps.session.outbox import Outbox, waits
from hpcps.session.participant import Copies, Participant
from hpcps.session.reduction import ACCUMULATE
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, Tensor, TensorExchange
from hpcps.session.trace import SessionTrace
from hpcps.transport.base import MessageTransport, Traffic

TIMEOUT = 600.0
"""Seconds in which an exchange must end."""
_ASK_AFTER, _ASK_EVERY = 0.5, 2.0
"""Seconds after which a worker asks for whom it waits, and between two questions."""
_STALLED = 30.0
"""Seconds after which a worker says for whom it waits; it says so again whenever it has waited twice as long."""
FAILED = "has failed"
"""How the phrase about a process begins whose script has ended with an error."""
_ENDED = "has ended its script or called shutdown"
_LOOK_EVERY = 0.1
"""Seconds between two checks that the other processes live."""
_CERTAIN = 0.3
"""Seconds from the end of a process until it counts as lost: a signal to all processes reaches some of them first."""
_BETWEEN_LOOKS = 1.0
"""Most seconds between two checks that count as silence of others: a batch system may have suspended all processes."""
RECENT = 10.0
"""Seconds over which the speed of exchanges is measured."""
_GATHER = 0.002
"""Seconds in which tensors are gathered that begin one after another, if nobody waits for them."""


class Member:
    """One process of a session: its aggregator, its participant, and the transport between them and the others.

    `step` never blocks, so tests drive several members in one thread. Messages to itself do not use the transport.

    Attributes:
        peer: the process.
        workers: all workers, by rank.
        servers: all servers.
        participant: its participant; None if it is a server.
        gone: the processes that have ended, and a phrase for messages that says why.
        error: why the session cannot go on; None if it can.
        told: whether `check` has raised it.
        combined: the seconds in which its aggregator combined tensors.
        in_flight: the seconds in which exchanges of its participant were not done.
        trace: the trace of the process, if there is one.
        notices: messages for a person that have not been printed.
        steps: the steps that the script has taken together with the other processes.
        updates: the steps of optimizers that the script has taken, also those that exchange nothing.
        outbox: its large messages to others that wait.
        joining: the aggregators from which this worker, which has joined, has not heard that all workers have.
        last: the index of the worker that was the last one to join; -1 if nobody has.
        missed: the names of the tensors that others have declared while this worker had joined.
        silent: why this process, which has ended its part, does not wait for the others any more; empty if it does.
    """

    trace: SessionTrace | None = None

    def __init__(
        self,
        peer: Peer,
        world: Sequence[Peer],
        transport: MessageTransport,
        allocate: Allocate,
        ended: Callable[[], Iterable[Peer]] = tuple,
        timeout: float = TIMEOUT,
        copies: Copies | None = None,
        shared_memory: bool = False,
        sharding: Sharding | None = None,
        neighbours: Collection[Peer] = (),
    ) -> None:
        """Begin a session.

        Args:
            peer: the process.
            world: all processes.
            transport: its transport.
            allocate: returns memory to send from.
            ended: returns the processes that are known to have ended.
            timeout: seconds in which an exchange must end.
            copies: copies tensors; by default they are given as bytes.
            shared_memory: whether all processes share memory.
            sharding: which process combines what; by default servers combine, and without servers the workers do.
            neighbours: the processes that read allocated memory in place.
        """
        self.peer, self._world, self._transport = peer, tuple(world), transport
        self.workers, self.servers = (
            tuple(each for each in world if each.role == role) for role in ("worker", "server")
        )
        sharding = sharding or Sharding.evenly(world)
        self._aggregators = sharding.aggregators
        self._aggregator = Aggregator(peer, self.workers, sharding, allocate)
        self.participant = (
            Participant(peer, len(self.workers), sharding, allocate, copies or Copies(), shared_memory, neighbours)
            if peer.role == "worker"
            else None
        )
        self.joining: set[Peer] = set()
        self.last = -1
        self.missed: set[str] = set()
        self.gone: dict[Peer, str] = {}
        self.error: HpcpsError | None = None
        self.told = False
        self.steps = self.updates = 0
        self._steps_of: dict[Peer, int] = {}
        self._updates_of: dict[Peer, int] = {}
        self.combined = self.in_flight = 0.0
        self._began: float | None = None
        self._ended, self._timeout = ended, timeout
        self._own: deque[Message] = deque()
        self._envelopes = Envelopes(peer, ID)
        self.outbox = Outbox()
        self._queue: deque[TensorExchange] = deque()
        self._recent: deque[tuple[float, int]] = deque()
        self._looked = 0.0
        # From the end of this process's part on: the seconds in which the others have given no sign of life.
        self._silence: dict[Peer, float] = {}
        self._called = 0.0
        self.silent = ""
        self._seen: dict[Peer, float] = {}
        self.notices: deque[str] = deque()
        self._noticed = 0.0

    def declare(self, declaration: Declaration) -> Tensor:
        """Declare a tensor; see `Participant.declare`."""
        self.check()
        assert self.participant is not None, "servers run no script"
        tensor, messages = self.participant.declare(declaration)
        self._carry_out(messages)
        return tensor

    def start(
        self,
        tensor: Tensor,
        source: Any,
        target: Any,
        later: bool = False,
        call: int = 0,
        absent: Sequence[int] = (),
        deferred: bool = False,
        priority: int = 0,
    ) -> TensorExchange:
        """Begin an exchange, see `TensorExchange`. A small tensor waits until `flush` sends it with others.

        If `later`, any tensor waits so, and this neither copies nor sends.

        Raises:
            RunError: the tensor is being exchanged, the session cannot go on, or a worker has left it.
        """
        if self.error is not None or self.gone:
            self._refuse(tensor)
        exchange = TensorExchange(tensor, source, target, time.monotonic(), call, absent, deferred, priority)
        if tensor.small or later:
            self._queue.append(exchange)  # without a lock: `flush` may run in another thread
        else:
            self._start([exchange])
            self.drain()
        return exchange

    def flush(self) -> None:
        """Begin to send the tensors that wait; `step` goes on with large ones."""
        exchanges = [self._queue.popleft() for _ in range(len(self._queue))]
        if self.error is not None:  # another thread may have failed after `start` has looked
            for exchange in exchanges:
                exchange.end(self.error)
        elif exchanges:
            self._start(exchanges)

    def _start(self, exchanges: list[TensorExchange]) -> None:
        assert self.participant is not None, "servers run no script"
        if self._began is None:
            self._began = exchanges[0].began
        self._recent.append((exchanges[-1].began, 4 * sum(each.tensor.declaration.elements for each in exchanges)))
        while self._recent[0][0] < exchanges[-1].began - RECENT:
            self._recent.popleft()
        for exchange in exchanges:
            if not exchange.tensor.small:
                self.outbox.put(exchange.priority, self.participant.start(exchange))
        self._carry_out(self.participant.start_small(each for each in exchanges if each.tensor.small))

    def recent(self) -> int:
        """Return the bytes of the exchanges that began in the last `RECENT` seconds."""
        return sum(size for began, size in self._recent if began >= time.monotonic() - RECENT)

    def _refuse(self, tensor: Tensor) -> None:
        self.check()
        for worker, why in self.gone.items():
            # One that has ended its script still answers until all have.
            if worker.role == "worker" and (tensor.declaration.reduction != ACCUMULATE or not why.startswith(_ENDED)):
                raise RunError(f"{self.peer} cannot exchange tensor '{tensor.declaration.name}': {worker} {why}")

    def check(self) -> None:
        """Raise the error of the session, if there is one."""
        if self.error is not None:
            self.told = True
            raise RunError(message_of(self.error))

    @property
    def traffic(self) -> Traffic:
        """The bytes of all its messages to and from other processes."""
        return self._transport.traffic

    @property
    def waited(self) -> Mapping[Peer, float]:
        """The seconds in which its aggregator waited for the last worker, by that worker."""
        return self._aggregator.waited

    def step(self) -> bool:
        """Handle one message that has come, and send one that waits, if there are any; return whether there were."""
        try:
            if self._own:
                self._take(self.peer, self._own.popleft())
                return True
            arrival = self._transport.receive()
            event = arrival.opened(ID) if isinstance(arrival, Delivered) else arrival
            if isinstance(event, Received):
                if self.trace is not None:
                    self.trace.took(event)
                self._take(event.source, event.message)
            elif isinstance(event, Malformed):
                raise RunError(f"{self.peer} cannot read a message of {event.source}: {event.reason}")
            return self._send_next() or event is not None
        except Exception as error:
            self.fail(error)
            return True

    def settle_own(self) -> None:
        """Handle the messages to itself."""
        while self._own:
            self.step()

    def drain(self) -> None:
        """Handle the messages to itself, and send those that wait, as far as the credit allows."""
        while self._own or self._send_next():
            self.settle_own()

    def watch(self) -> None:
        """Look after what takes long: processes that have ended, and exchanges that wait for others."""
        now, participant = time.monotonic(), self.participant
        try:
            if self._queue and now - self._queue[0].began > _GATHER:
                self.flush()
            if now - self._looked < _LOOK_EVERY or self.error is not None:
                return
            passed, self._looked = min(now - self._looked, _BETWEEN_LOOKS), now
            for peer in self._ended():
                since = self._seen.setdefault(peer, now)
                if peer not in self.gone and now - since > _CERTAIN and self._transport_is_empty():
                    self._note(peer, "has ended: it was killed, it crashed, or it called os._exit()")
            if participant is not None:
                self._ask(participant, now)
            self._call(now, passed)
        except Exception as error:
            self.fail(error)

    def _call(self, now: float, passed: float) -> None:
        """Ask the processes for which the end of this one waits for signs of life; their scripts may take long."""
        waiting_for = [peer for peer in self._silence if peer not in self.gone]
        for peer in waiting_for:
            self._silence[peer] += passed
            if self._silence[peer] > self._timeout and not self.silent:
                self.silent = (
                    f"{self.peer} has ended its script, and waits for {peer}, which has given no sign of life for "
                    f"{self._silence[peer]:.3g} s: it is stopped or hangs, or its host is gone"
                )
        if now - self._called > _ASK_EVERY:
            self._called = now
            self._carry_out(Send(peer, AskAlive()) for peer in waiting_for)

    def _ask(self, participant: Participant, now: float) -> None:
        """Ask for whom exchanges wait that have taken long, and note the first that has taken very long.

        Raises:
            RunError: one has taken too long.
        """
        for exchange in participant.exchanges:
            if now - exchange.began > self._timeout:
                raise RunError(
                    f"{self.peer} waited {self._timeout:g} s for {self.waited_for(exchange)}, after {self.steps} steps"
                )
            waited = now - exchange.began
            if waited > _STALLED and now - self._noticed > waited / 2:
                self._noticed = now
                names, end = self.waited_for(exchange), f"after {self._timeout:g} s this is an error"
                self.notices.append(f"has waited {waited:.0f} s for {names}, after {self.steps} steps; {end}")
            if now > max(exchange.began + _ASK_AFTER, exchange.asked + _ASK_EVERY):
                exchange.asked = now
                self._carry_out(participant.query(exchange))

    def waited_for(self, exchange: TensorExchange) -> str:
        """Return for whom an exchange waits, and in which tensor."""
        asked = self.participant.missing(exchange) if self.participant else []
        names = ", ".join(exchange.waiting_for or (str(peer) for peer in asked if peer != self.peer))
        return f"{names or 'other processes'} in tensor {exchange.tensor.declaration}"

    def fail(self, error: BaseException, prefix: str = "", *, tell: bool = True) -> None:
        """End the session with an error, in all processes if `tell`; its text begins with a prefix in the others."""
        if self.error is not None:
            return
        known = error if isinstance(error, HpcpsError) else RunError(f"{self.peer}: {text_of(error)}")
        self.error = known
        self.outbox.clear()
        if tell:
            self._tell(Abort(reason=f"{prefix}{message_of(known)}"))
        if self.participant is not None:
            self.participant.fail(known)

    def leave(self, error: str = "") -> None:
        """Tell the others that this process ends, after the results that they wait for; `error` says why it failed."""
        while (effect := self.outbox.next()) is not None:
            self._send(effect)
        self._tell(Failed(error=error) if error else Leave(steps=self.steps, updates=self.updates))
        if not error:
            self._silence = dict.fromkeys((peer for peer in self._world if peer != self.peer), 0.0)

    def join(self) -> None:
        """Take part in no exchange until all workers have joined: until nobody is left in `joining`.

        The exchanges of this worker are done.
        """
        self.joining = set(self._aggregators)
        self._carry_out(Send(each, Joined(steps=self.steps, updates=self.updates)) for each in self._aggregators)

    def _end_join(self, source: Peer, message: AllJoined) -> None:
        """Take note that an aggregator has heard of all workers that they have joined."""
        assert self.participant is not None, "servers do not join"
        self.joining.remove(source)
        if source == self._aggregators[0]:
            self.last, self.steps, self.updates = message.last, message.steps, message.updates
            declared = [
                Declaration(name, dtype, shapes, reduction, whole, key)
                for key, name, dtype, shapes, reduction, whole in message.declared
            ]
            self.missed.update(self.participant.learn(declared))

    def unequal_steps(self) -> str:
        """Return which worker has ended without an error after another number of steps than this one; empty: none."""
        if self.participant is None or self.error is not None:
            return ""
        skipped = (
            "a process that skips a step combines its next gradients with those of another step: all processes must "
            "take every step"
        )
        left_out = "the model of a process that leaves out optimizer.step() differs from those of the others"
        counts = (
            ("steps", self.steps, self._steps_of, skipped),
            ("steps of the optimizer", self.updates, self._updates_of, left_out),
        )
        return next(
            (
                f"the numbers of {counted} differ: {self.peer} has taken {mine}, and {peer} {count}: {consequence}"
                for counted, mine, of_others, consequence in counts
                for peer, count in of_others.items()
                if count != mine
            ),
            "",
        )

    @property
    def alone(self) -> bool:
        """Whether all other processes have ended, or will not need this one."""
        return len(self.gone) == len(self._world) - 1

    def _transport_is_empty(self) -> bool:
        """Handle all messages that have come; a process may have sent some before it ended."""
        while self.step():
            pass
        return self.error is None

    def _take(self, source: Peer, message: Message) -> None:
        if source in self._silence:
            self._silence[source] = 0.0
        match message:
            case TensorResult() | Missing() if self.participant is not None and self.error is None:
                if self.trace is not None and isinstance(message, TensorResult):
                    self.trace.pulled(source, message.first, self.participant.exchanges_of(source, message))
                self.participant.take(source, message)
                if self._began is not None and not self.participant.open:
                    self.in_flight += time.monotonic() - self._began
                    self._began = None
            case Given() if self.error is None:
                self._carry_out(self._aggregator.take(source, message))
            case Abort(reason=reason):
                self.fail(RunError(reason), tell=False)
            case Failed(error=error):
                self._note(source, f"{FAILED}: {error}")
            case Leave() if source.role == "server":
                # All workers have left it; their own messages to this process may come later.
                self.gone[source] = "has ended"
            case Leave(steps=steps, updates=updates):
                self._steps_of[source], self._updates_of[source] = steps, updates
                self._note(source, f"{_ENDED} after {steps} steps")
            case AllJoined() if self.error is None:
                self._end_join(source, message)
            case AskAlive():
                self._carry_out([Send(source, Alive())])
            case Alive():
                pass  # `_silence` is noted already
            case _ if self.error is None:
                self._carry_out(self._aggregator.take(source, message))

    def _note(self, peer: Peer, why: str) -> None:
        self.gone[peer] = why
        if self.error is not None:
            return
        if self.participant is not None:
            for exchange in self.participant.exchanges:
                ends = why.startswith(_ENDED) and exchange.tensor.declaration.reduction == ACCUMULATE
                waits = peer in self.participant.missing(exchange) or (exchange in self._queue and peer in self.workers)
                if waits and not ends:
                    name = exchange.tensor.declaration
                    raise RunError(f"{self.peer} waited for {peer} in tensor {name}: {peer} {why}")
        if peer.role == "worker":
            self._aggregator.leave(peer, why)
        elif not all(worker in self.gone for worker in self.workers if worker != self.peer):
            raise RunError(f"{peer} {why}")

    def _carry_out(self, effects: Iterable[Send | Now]) -> None:
        for effect in effects:
            if isinstance(effect, Now):
                began = time.perf_counter() if self.trace is None else self.trace.begin(effect)
                effect.work()
                self.combined += time.perf_counter() - began
                if self.trace is not None:
                    self.trace.carried_out(effect, began)
            elif effect.to != self.peer and waits(message := effect.message):
                self.outbox.put(message.priority, iter([effect]))
            else:
                self._send(effect)

    def _send_next(self) -> bool:
        """Send the most urgent message that waits, if the credit allows it; return whether it has sent one."""
        if not self.outbox or not self.outbox.has_room(self._transport.unsent):
            return False
        if (effect := self.outbox.next()) is not None:
            self._send(effect)
        return effect is not None

    def _send(self, effect: Send) -> None:
        began = 0.0 if self.trace is None else self.trace.begin(effect)
        if effect.to == self.peer:
            self._own.append(effect.message)
        else:
            self._transport.send(effect.to, self._envelopes.around(effect.message))
        if self.trace is None:
            return
        if effect.to != self.peer:
            self.trace.carried_out(effect, began)
        if isinstance(effect.message, TensorUpdate) and self.participant is not None:
            exchanges = self.participant.exchanges_of(effect.to, effect.message)
            self.trace.pushed(effect.to, effect.message.first, exchanges)

    def _tell(self, message: Message) -> None:
        # One that has left also waits for the others to leave.
        self._carry_out(Send(peer, message) for peer in self._world if peer != self.peer)
