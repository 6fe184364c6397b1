"""A session: the exchange of tensors between the processes of a script, as one process sees it."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.protocol.messages import Peer
from hpcps.session.buckets import partition
from hpcps.session.member import TIMEOUT, Member
from hpcps.session.participant import Copies
from hpcps.session.record import ScriptRecord
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, Tensor, TensorExchange
from hpcps.transport.process_group import ProcessGroup, refuse

_ENOUGH = 1 << 18
"""Elements of small tensors that are sent before anybody waits for them."""
_OFTEN = 2e-3
"""Maximum seconds between two polls of a thread to which the script leaves copying and sending."""

_SENDING = 1e-3
"""Maximum seconds between two polls while messages wait for the transport."""

EXCHANGES = ("declare", "start", "join")
"""The methods with which a process exchanges tensors."""
_CALLS = (
    *EXCHANGES, "complete", "suspend", "resume", "await_end",
    "done", "charge", "log", "step", "updated", "then", "wait", "recent", "serve", "fail", "expect",
)  # fmt: skip
"""The methods with which a process takes part in a session."""


class Session:
    """The session of this process: a member, and a thread that makes progress while the script computes.

    A thread that waits drives the member itself; the background thread then pauses. Only one of them steps at a time.

    Attributes:
        rank: the number of this worker.
        size: the number of workers.
        local_rank: its number among the workers of its host.
        local_size: the number of workers of its host.
        cross_rank: the number of its host among those that have a worker with this local rank.
        cross_size: the number of these hosts.
        homogeneous: whether each host has the same number of workers.
        partition: the bytes of a partition.
        declared: the declared tensors and what a framework knows them by, by name: it need not declare them again.
        record: the record of this process; None unless `hpcps launch` has started it.
        folder: the folder of its run, if it has a record.
        suspended: whether exchanges are refused until `resume`.
    """

    record: ScriptRecord | None = None
    folder: Path | None = None
    suspended = False

    def __init__(
        self,
        group: ProcessGroup,
        world: Sequence[Peer],
        timeout: float = TIMEOUT,
        copies: Copies | None = None,
        sharding: Sharding | None = None,
    ) -> None:
        """Create a session; all processes of the group do so at the same time. No message is taken before `begin`.

        Args:
            group: the process group.
            world: the role of each rank of the group.
            timeout: seconds in which an exchange must end.
            copies: copies tensors; by default they are given as bytes.
            sharding: which process combines what; see `Member`.
        """
        self._group, self._timeout = group, timeout
        me, members = world[group.rank], [peer for peer in world if peer.role in ("worker", "server")]
        self.host = socket.gethostname()
        # Each process must divide tensors alike.
        neighbours = group.in_memory()
        reads_all = {me, *neighbours}.issuperset(members)
        texts = zip(world, group.collect(f"{self.host} {reads_all}"), strict=True)
        found = {peer: text.split() for peer, text in texts if peer in members}
        shared_memory = all(reads == "True" for _, reads in found.values())
        self.member = Member(
            me,
            members,
            group.transport,
            group.allocate,
            group.ended,
            timeout,
            copies,
            shared_memory,
            sharding,
            neighbours,
        )
        self.rank, self.size = me.index, len(self.member.workers)
        self.partition = partition(self.size, shared_memory)
        hosts: dict[str, list[int]] = {}
        for worker in sorted(self.member.workers, key=lambda peer: peer.index):
            hosts.setdefault(found[worker][0], []).append(worker.index)
        here = hosts.get(self.host, [])
        self.local_rank = here.index(self.rank) if me.role == "worker" else 0
        self.local_size = len(here)
        across = [host for host, workers in hosts.items() if len(workers) > self.local_rank]
        self.cross_rank, self.cross_size = across.index(self.host) if self.host in across else 0, len(across)
        self.homogeneous = len(set(map(len, hosts.values()))) == 1
        self.declared: dict[str, tuple[object, Tensor]] = {}
        self._lock = threading.RLock()
        self._waiters = self._waiting = 0
        self._resume = threading.Event()
        self._resume.set()
        self._closing = False
        self._unfinished: list[Callable[[], str]] = []
        self._polls = group.backoff().longest < _OFTEN
        self._thread = threading.Thread(target=self._run, name="hpcps", daemon=True)

    def limit(self, credit: int) -> None:
        """Bound the bytes that this process has on their way; see `Outbox`."""
        with self._lock:
            self.member.outbox.credit = credit

    @property
    def _longest(self) -> float:
        """The most seconds between two polls."""
        return _SENDING if self.member.outbox else inf

    @property
    def name(self) -> str:
        """The process and its host, for messages."""
        return f"{self.member.peer} on {self.host}"

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts about the library that connects the processes; see `ProcessGroup.facts`."""
        return self._group.facts()

    def begin(self) -> None:
        """Make progress from now on."""
        self._thread.start()

    def declare(self, declaration: Declaration) -> Tensor:
        """Declare a tensor; see `Participant.declare`."""
        with self._lock:
            return self.member.declare(declaration)

    def start(
        self,
        tensor: Tensor,
        source: Any,
        target: Any,
        call: int = 0,
        absent: Sequence[int] = (),
        deferred: bool = False,
        priority: int = 0,
    ) -> TensorExchange:
        """Begin an exchange; see `Member.start`. Small tensors wait until there are many, or somebody waits for one.

        Where the other thread polls often, it also sends large tensors while the script computes.
        """
        if tensor.small or self._polls:
            self._waiting += tensor.declaration.elements if tensor.small else 0
            exchange = self.member.start(tensor, source, target, True, call, absent, deferred, priority)
            if self._waiting > _ENOUGH:
                self._flush()
            return exchange
        with self._lock:
            exchange = self.member.start(tensor, source, target, False, call, absent, deferred, priority)
            return exchange

    def done(self, exchange: TensorExchange) -> bool:
        """Return whether an exchange is done."""
        if not exchange.done:
            self._flush()
        return exchange.done

    def charge(self, task: str) -> None:
        """Add the time since the last charge to a task of the record: `train` or `wait`."""
        with self._lock:
            if self.record is not None:
                self.record.charge(task)
            if self.member.trace is not None:
                self.member.trace.rest("wait" if task == "train" else "train")

    def log(self, epoch: float | None, numbers: Mapping[str, Any]) -> None:
        """Write numbers of the script into the record of worker 0; see `ScriptRecord.log`."""
        with self._lock:
            if self.record is not None and self.rank == 0:
                self.record.log(epoch, numbers)

    def step(self, *, together: bool = True) -> None:
        """Record that a step of the script has ended; `together`: all processes take it."""
        with self._lock:
            self.member.steps += together
            if self.record is not None:
                self.record.step()
            if self.member.trace is not None:
                self.member.trace.step += 1

    def updated(self) -> None:
        """Count a step of an optimizer, which all processes take: also one that exchanges nothing."""
        with self._lock:
            self.member.updates += 1

    def then(self, exchange: TensorExchange, call: Callable[[], None]) -> None:
        """Call a function when an exchange is done, in the thread that finds this out; at once if it is."""
        with self._lock:
            if not (self._polls or exchange.done):
                self._flush()
            exchange.then(call)

    def wait(self, exchange: TensorExchange) -> None:
        """Wait until an exchange is done.

        Raises:
            RunError: there is no result; the message says whom this process waited for, and in which tensor.
        """
        if not exchange.done:
            self._await(lambda: exchange.done)
        if exchange.error is not None:
            self.member.check()

    def join(self) -> int:
        """Wait until all workers call this, and let the others combine tensors without this one until then.

        Returns:
            The rank of the worker that was the last one to call it.

        Raises:
            RunError: another worker has ended or was lost, the script has begun a step and not ended it, or the others
                exchange a tensor that needs all workers.
        """
        self.complete()
        with self._lock:
            self.member.join()
        self._await(lambda: self.member.error is not None or not self.member.joining)
        self.member.check()
        return self.member.last

    def complete(self) -> None:
        """Wait for all exchanges that this process has begun.

        Raises:
            RunError: one has no result, or the script has begun a step and not ended it.
        """
        self._refuse_unfinished()
        participant = self.member.participant
        assert participant is not None, "servers run no script"
        self._await(lambda: self.member.error is not None or not participant.open)
        self.member.check()

    def suspend(self) -> None:
        """Refuse exchanges from now on, until `resume`."""
        self.suspended = True
        refuse(self, EXCHANGES, "the script has called suspend(): it exchanges nothing until all have called resume()")

    def resume(self) -> None:
        """Allow exchanges again."""
        self.suspended = False
        for name in EXCHANGES:
            delattr(self, name)

    def await_end(self) -> None:
        """Wait until the session cannot go on, as long as an exchange may take."""
        deadline = time.monotonic() + self._timeout
        self._await(lambda: self.member.error is not None or time.monotonic() > deadline)
        if self.member.error is None:
            self.fail(RunError(f"{self.name} has waited {self._timeout:g} s for worker-0 to resize the script"))

    def _refuse_unfinished(self) -> None:
        """End the session with an error if the script has left something unfinished."""
        for problem in filter(None, (unfinished() for unfinished in self._unfinished)):
            self.fail(RunError(problem))

    def recent(self) -> int:
        """Return the bytes of recent exchanges; see `Member.recent`."""
        with self._lock:
            return self.member.recent()

    def describe(self) -> str:
        """Return for whom this process waits; empty if it waits for nobody."""
        exchanges = self.member.participant.exchanges if self.member.participant else []
        return next((self.member.waited_for(each) for each in exchanges), "")

    def serve(self) -> None:
        """Combine tensors until all workers have left (a server).

        Raises:
            RunError: the session could not go on.
        """
        workers, gone = self.member.workers, self.member.gone

        def ended() -> bool:
            return self.member.error is not None or (len(gone) >= len(workers) and all(w in gone for w in workers))

        self._until(ended)
        self.member.check()

    def fail(self, error: BaseException) -> None:
        """End the session with an error of this process, in all processes; the others name this one."""
        with self._lock:
            self.member.fail(error, f"{self.member.peer} has failed: ")

    def expect(self, unfinished: Callable[[], str]) -> None:
        """Call a function in `join`, and before the session ends without an error.

        It returns what the script has left unfinished.
        """
        self._unfinished.append(unfinished)

    def disown(self) -> None:
        """Leave the session to the parent, in a process that it has forked: the calls raise, and the end does nothing.

        The thread of the session is not there, and locks may be held that nobody will release.
        """
        who = self.member.peer
        message = f"{who} has forked this process, which is not a member of its session: exchange in {who} itself"
        refuse(self, _CALLS, message)
        self._closing = True

    def shutdown(self, error: str = "") -> None:
        """End this process's part; without an error, after its exchanges, and when the others do not need it either.

        Raises:
            RunError: the result of an exchange that the script has not awaited does not come, the script has begun a
                step and not ended it, the processes have taken different numbers of steps, or one of them has given no
                sign of life for as long as an exchange may take.
        """
        participant = self.member.participant
        if self._closing:
            return
        if participant is not None and not error and not self.member.told:
            self._refuse_unfinished()
            self._await(lambda: self.member.error is not None or not participant.open)
            if self.member.error is not None:
                self.shutdown(str(self.member.error))
                self.member.check()
        with self._lock:
            self.member.leave(error)
        problem = ""
        if not error:
            self._await(lambda: self.member.alone or bool(self.member.silent))
            error = problem = self.member.silent or self.member.unequal_steps()
            if self.member.silent:
                self.fail(RunError(problem))
        with self._lock:
            if self.record is not None:
                self.record.end("failed" if error else "finished", error)
                if not error:
                    report(self.name, str(self.record))
                self.record = None
            if self.member.trace is not None:
                self.member.trace.close()
                self.member.trace = None
        self._closing = True
        self._resume.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)
        if problem:
            raise RunError(problem)

    def leave(self) -> None:
        """After `shutdown`, close what this process shares; no other process may need it any more."""
        self._group.leave()

    def _flush(self) -> None:
        """Send the tensors that wait."""
        with self._lock:
            self._waiting = 0
            self.member.flush()
            if self._polls:
                self.member.settle_own()
            else:
                self.member.drain()

    def _await(self, done: Callable[[], bool]) -> None:
        """Send what waits, and make progress until a condition holds; a worker's record counts this as waiting."""
        worker = self.member.participant is not None
        if worker:
            self.charge("train")
        self._flush()
        self._until(done)
        if worker:
            self.charge("wait")

    def _watch(self) -> None:
        """Look after what takes long, and say so."""
        self.member.watch()
        while self.member.notices:
            report(self.name, self.member.notices.popleft())

    def _until(self, done: Callable[[], bool]) -> None:
        """Make progress until a condition holds."""
        with self._lock:
            self._waiters += 1
            self._resume.clear()
        backoff = self._group.backoff()
        try:
            while not done():
                with self._lock:
                    if self.member.step():
                        backoff.reset()
                        continue
                    self._watch()
                if not done():
                    backoff.wait(self._longest)
        finally:
            with self._lock:
                self._waiters -= 1
                if not self._waiters:
                    self._resume.set()

    def _run(self) -> None:
        backoff = self._group.backoff()
        while not self._closing:
            self._resume.wait()
            with self._lock:
                progress = self.member.step()
                if not progress:
                    self._watch()
            if progress:
                backoff.reset()
            elif not self._closing:
                backoff.wait(self._longest)


def report(who: str, text: str) -> None:
    """Print a message of this process, in one write."""
    sys.stderr.write(f"hpcps: {who}: {text}\n")
    sys.stderr.flush()
