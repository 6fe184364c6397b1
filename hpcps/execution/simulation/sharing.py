"""The queue of events in virtual time, and the resources that processes share: cores of hosts, links between hosts."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from hpcps.spec.simulation import Link

Action = Callable[[], None]


class EventQueue:
    """A clock that advances from one scheduled action to the next; simultaneous actions run in order of scheduling."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def at(self, moment: float, action: Action) -> None:
        """Schedule an action; a time in the past means now."""
        heapq.heappush(self._heap, (max(moment, self._now), next(self._order), action))

    def advance(self, to: float) -> None:
        """Advance to a time, or to the next action if it is earlier."""
        self.at(to, lambda: None)
        self.step()

    def step(self) -> bool:
        """Advance to the next action and execute it; return whether there was one."""
        if not self._heap:
            return False
        self._now, _, action = heapq.heappop(self._heap)
        action()
        return True


class ActiveTask:
    """Work in progress.

    Attributes:
        left: the remaining work at the last change of rates, in the unit of the resource (CPU seconds, bytes).
        uses: the resources that it uses.
        done: called at its end.
        rate: units per second.
        end: when it ends if the rates do not change.
    """

    __slots__ = ("done", "end", "left", "rate", "uses")

    def __init__(self, left: float, uses: Sequence[Hashable], done: Action) -> None:
        self.left = left
        self.uses = uses
        self.done = done
        self.rate = 0.0
        self.end = 0.0


class Sharing(ABC):
    """Concurrent tasks whose rates change whenever a task starts or ends.

    There are no time slices: between two changes every rate is constant, so the ends are exact.
    """

    def __init__(self, event_queue: EventQueue) -> None:
        self._event_queue = event_queue
        self._jobs: list[ActiveTask] = []
        self._since = event_queue()
        self._changes = 0
        self._users: Counter[Hashable] = Counter()

    @abstractmethod
    def rate(self, job: ActiveTask) -> float:
        """Return the current rate of a job."""

    def begin(self, amount: float, done: Action, uses: Sequence[Hashable] = ()) -> ActiveTask:
        """Start a job with an amount of work; `done` is called at its end."""
        self._pass_time()
        job = ActiveTask(amount, uses, done)
        self._jobs.append(job)
        self._users.update(job.uses)
        self._change()
        return job

    def cancel(self, job: ActiveTask) -> float:
        """Cancel a job; return its remaining work."""
        self._pass_time()
        self._jobs.remove(job)
        self._users.subtract(job.uses)
        self._change()
        return job.left

    def changed(self) -> None:
        """Recompute the rates after another change."""
        self._pass_time()
        self._change()

    def _pass_time(self) -> None:
        now = self._event_queue()
        if now > self._since:
            for job in self._jobs:
                job.left = max(0.0, job.left - job.rate * (now - self._since))
        self._since = now

    def _change(self) -> None:
        self._changes += 1
        if not self._jobs:
            return
        for job in self._jobs:
            job.rate = self.rate(job)
            job.end = self._since + job.left / job.rate
        self._event_queue.at(min(job.end for job in self._jobs), partial(self._end, self._changes))

    def _end(self, change: int) -> None:
        """End the jobs that are complete now, unless the rates have changed since this end was scheduled."""
        if change != self._changes:
            return
        self._pass_time()
        over = [job for job in self._jobs if job.end <= self._since]
        self._jobs = [job for job in self._jobs if job.end > self._since]
        for job in over:
            self._users.subtract(job.uses)
        self._change()
        for job in over:
            job.done()


class HostCores(Sharing):
    """A host's cores: n tasks that can run on c cores run at min(1, c / n) each (processor sharing).

    A polling process demands a small part of a core. It gets that part as long as the demand does not exceed an even
    share of the cores.
    """

    def __init__(self, event_queue: EventQueue, cores: float, demand: float = 0.0, speed: float = 1.0) -> None:
        """Describe a host.

        Args:
            event_queue: the clock.
            cores: the number of cores.
            demand: the part of a core that a polling process demands.
            speed: CPU seconds that a core executes per second.
        """
        super().__init__(event_queue)
        self._speed = speed
        self._cores = cores
        self._demand = demand
        self._polling = 0

    def poll(self, more: int) -> None:
        """Change the number of polling processes by `more`."""
        self._polling += more
        if self._demand:
            self.changed()

    def rate(self, job: ActiveTask) -> float:
        """Return the CPU seconds per second of a task."""
        tasks, polling = len(self._jobs), self._polling if self._demand else 0
        share = max((self._cores - polling * self._demand) / tasks, self._cores / (tasks + polling))
        return self._speed * min(1.0, share)


class Links(Sharing):
    """Links that transfers share evenly: a transfer over several links gets the smallest of its shares.

    Transfers share a link rather than queue, because the packets of many connections interleave on a wire. A large
    message of one process therefore does not block a small message of another.
    """

    def __init__(self, event_queue: EventQueue, bandwidths: Mapping[Hashable, float]) -> None:
        """Describe the links.

        Args:
            event_queue: the clock.
            bandwidths: bytes per second of each link.
        """
        super().__init__(event_queue)
        self._bandwidths = bandwidths

    def rate(self, job: ActiveTask) -> float:
        """Return the bytes per second of a transfer."""
        return min(self._bandwidths[link] / self._users[link] for link in job.uses)


class _Transfer(NamedTuple):
    """A message on its way: its size in bytes, its hosts, and what happens when it arrives."""

    size: int
    source: int
    to: int
    arrive: Action


class Network:
    """Delivers messages over the local link of a host, or over the outgoing link of one and the incoming of another.

    Messages of one channel are sequential, because a connection between two processes keeps them in order.
    """

    def __init__(self, event_queue: EventQueue, hosts: Iterable[int], local: Link, remote: Link) -> None:
        """Connect hosts.

        Args:
            event_queue: the clock.
            hosts: the hosts.
            local: the link between processes of one host; each host has one.
            remote: the outgoing and the incoming link of each host.
        """
        self._event_queue = event_queue
        self._kinds = {"local": local, "out": remote, "in": remote}
        widths = {(kind, host): link.bandwidth for host in hosts for kind, link in self._kinds.items()}
        self._links = Links(event_queue, {link: width for link, width in widths.items() if width is not None})
        self._queues: dict[Hashable, deque[_Transfer]] = {}

    def carry(self, channel: Hashable, hosts: tuple[int, int], size: int, arrive: Action) -> None:
        """Transfer a message.

        Args:
            channel: its messages arrive in the order in which they are sent.
            hosts: those of the sender and the receiver.
            size: the number of bytes.
            arrive: called when it arrives.
        """
        queue = self._queues.setdefault(channel, deque())
        queue.append(_Transfer(size, *hosts, arrive))
        if len(queue) == 1:
            self._transfer(queue)

    def _transfer(self, queue: deque[_Transfer]) -> None:
        size, here, there, _ = queue[0]
        kinds = ("local",) if here == there else ("out", "in")
        link = self._kinds[kinds[0]]
        done = partial(self._transferred, queue, link.latency)
        if link.bandwidth is None or not size:
            self._event_queue.at(self._event_queue(), done)
        else:
            self._links.begin(size, done, [(kind, host) for kind, host in zip(kinds, (here, there), strict=False)])

    def _transferred(self, queue: deque[_Transfer], latency: float) -> None:
        self._event_queue.at(self._event_queue() + latency, queue.popleft().arrive)
        if queue:
            self._transfer(queue)
