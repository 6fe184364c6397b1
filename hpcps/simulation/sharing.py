"""Resources that everything that uses them shares: a host's cores, a link's bandwidth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

from hpcps.simulation.agenda import Action, Agenda


class Job:
    """Work in progress.

    Attributes:
        left: what was left of it when the rates last changed, in the resource's unit (CPU seconds, bytes).
        uses: the resources it goes through.
        done: what follows.
        rate: units per second.
        end: when it is over if nothing else changes.
    """

    __slots__ = ("done", "end", "left", "rate", "uses")

    def __init__(self, left: float, uses: Sequence[Hashable], done: Action) -> None:
        self.left = left
        self.uses = uses
        self.done = done
        self.rate = 0.0
        self.end = 0.0


class Sharing(ABC):
    """Jobs that go on side by side, at rates that change whenever one begins or ends.

    Nothing is cut into slices of time: between two changes every rate is constant, so ends are exact.
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._jobs: list[Job] = []
        self._since = agenda()
        self._changes = 0
        self._users: Counter[Hashable] = Counter()

    @abstractmethod
    def rate(self, job: Job) -> float:
        """Return the rate of a job while the jobs are what they are now."""

    def begin(self, amount: float, done: Action, uses: Sequence[Hashable] = ()) -> Job:
        """Begin a job of so much work; `done` is called at its end."""
        self._pass_time()
        job = Job(amount, uses, done)
        self._jobs.append(job)
        self._users.update(job.uses)
        self._change()
        return job

    def cancel(self, job: Job) -> float:
        """Break a job off; return how much of it was left."""
        self._pass_time()
        self._jobs.remove(job)
        self._users.subtract(job.uses)
        self._change()
        return job.left

    def changed(self) -> None:
        """Take note that something else changed the rates from now on."""
        self._pass_time()
        self._change()

    def _pass_time(self) -> None:
        now = self._agenda()
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
        self._agenda.at(min(job.end for job in self._jobs), partial(self._end, self._changes))

    def _end(self, change: int) -> None:
        """End what is over now, unless the rates have changed since this was foreseen."""
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


class Cores(Sharing):
    """A host's cores: n tasks that can run on c cores run at min(1, c / n) each (processor sharing).

    Processes that only poll now and then want a small part of a core each; they get it as long as there is enough for
    everyone's even share.
    """

    def __init__(self, agenda: Agenda, cores: float, demand: float = 0.0, speed: float = 1.0) -> None:
        """Describe a host.

        Args:
            agenda: the clock.
            cores: how many.
            demand: the part of a core that a polling process wants.
            speed: of a core; 1 does a CPU second in a second.
        """
        super().__init__(agenda)
        self._speed = speed
        self._cores = cores
        self._demand = demand
        self._polling = 0

    def poll(self, more: int) -> None:
        """Take note that so many more (or fewer) processes poll."""
        self._polling += more
        if self._demand:
            self.changed()

    def rate(self, job: Job) -> float:
        """Return the CPU seconds that a task does in a second."""
        tasks, polling = len(self._jobs), self._polling if self._demand else 0
        share = max((self._cores - polling * self._demand) / tasks, self._cores / (tasks + polling))
        return self._speed * min(1.0, share)


class Links(Sharing):
    """Links that transfers share evenly: one that goes through several gets the least of its shares.

    Even shares, not one after the other: that is what packets of many connections make of a wire, and a small message
    is not held up by a large one of somebody else.
    """

    def __init__(self, agenda: Agenda, bandwidths: Mapping[Hashable, float]) -> None:
        """Describe the links.

        Args:
            agenda: the clock.
            bandwidths: bytes per second of each.
        """
        super().__init__(agenda)
        self._bandwidths = bandwidths

    def rate(self, job: Job) -> float:
        """Return the bytes per second of a transfer."""
        return min(self._bandwidths[link] / self._users[link] for link in job.uses)
