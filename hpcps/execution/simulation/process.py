"""One process of a simulated run: the effects of a role, with their durations in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from hpcps.execution.background import BackgroundExecutor, Finished
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.simulation.sharing import Action, ActiveTask, EventQueue, HostCores
from hpcps.protocol.messages import StepsQuery
from hpcps.protocol.received import Malformed, Received
from hpcps.protocol.roster import ADVERSARY
from hpcps.roles.events import AwaitBackground, Compute, Effect, Event, InBackground, Now, Record, Send
from hpcps.spec.simulation import Costs
from hpcps.transport.backoff import Backoff


class Meter:
    """Counts the CPU seconds of a process."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the CPU seconds."""
        return self.seconds


class Process:
    """Advances virtual time before each effect of a role, on the cores of its host, and while the role waits.

    An effect takes place after the time that it costs: a message is sent after it is written, `Computed` follows the
    computation. As over MPI, the process handles a message that arrives meanwhile after the current event.
    """

    def __init__(
        self,
        driver: RoleDriver,
        event_queue: EventQueue,
        cores: HostCores,
        costs: Costs,
        meter: Meter,
        background: SimulatedBackground,
        streams: tuple[np.random.Generator, np.random.Generator],
        guard: Callable[[RoleDriver], AbstractContextManager[None]],
    ) -> None:
        """Create a simulated process.

        Args:
            driver: the driver of the role.
            event_queue: the clock.
            cores: the cores of its host.
            costs: the costs of its effects.
            meter: counts its CPU seconds.
            background: the background executor of the driver.
            streams: random generators of its step times and of its times of polling.
            guard: a context for the code of the driver, which reports its failures.
        """
        self.driver = driver
        self._event_queue = event_queue
        self._cores = cores
        self._costs = costs
        self._meter = meter
        self._background = background
        self._settling = False
        self._steps, self._polls = streams
        self._guard = guard
        self._turn: Iterator[Effect] | None = None
        self._spinning: ActiveTask | None = None
        self._asleep: float | None = None
        self._waking = False
        self._alarm: float | None = None
        self._backoff = Backoff()
        self._working: ActiveTask | None = None
        self._killed = False

    def start(self) -> None:
        """Start now."""
        self._event_queue.at(self._event_queue(), self._go_on)

    def kill(self) -> None:
        """End the process at once; what it has sent still arrives."""
        self._killed = True
        for task in (self._spinning, self._working):
            if task is not None:
                self._cores.cancel(task)
        if self._asleep is not None:
            self._cores.poll(-1)
        self._spinning = self._working = self._asleep = None

    def notice(self, *, at_once: bool = False) -> None:
        """Handle a new message or the end of a pause at the next poll of the process, or at once."""
        if self._killed:
            return
        if self._spinning is not None:
            self._meter.seconds -= self._cores.cancel(self._spinning)
            self._spinning = None
            self._go_on()
        elif self._asleep is not None and not self._waking:
            self._waking = True
            interval = self._costs.waiting.interval
            if interval and not at_once:
                slept = self._event_queue() - self._asleep
                interval = self._polls.random() * min(interval, self._backoff.interval_after(slept))
            self._event_queue.at(self._event_queue() + interval, self._wake)

    def _end_background(self, seconds: float) -> None:
        """End the background task; the role continues at once if it waits for the task."""
        if self._killed:
            return
        self._background.end(seconds)
        if self._settling:
            self._settling = False
            self._advance()
        else:
            self.notice()

    def _wake(self) -> None:
        if self._killed:
            return
        assert self._asleep is not None
        self._cores.poll(-1)
        self._meter.seconds += self._costs.waiting.demand * (self._event_queue() - self._asleep)
        self._asleep, self._waking = None, False
        self._go_on()

    def _go_on(self) -> None:
        """Handle the next event, if there is one; else wait."""
        if self._killed:
            return
        with self._guard(self.driver):
            event = self.driver.take()
        if event is None:
            self._wait()
            return
        self._turn = self.driver.handle(event)
        self._spend(self._cost_of_event(event), self._advance)

    def _advance(self) -> None:
        """Execute the effect whose time has passed and start the next one, until the event is handled."""
        assert self._turn is not None
        with self._guard(self.driver):
            effect = next(self._turn, None)
        if isinstance(effect, AwaitBackground) and self._background.under_way:
            self._settling = True
            return
        if effect is not None:
            self._spend(self._cost_of_effect(effect), self._advance)
            if isinstance(effect, InBackground):
                # After the effect: the task starts now, and a core executes it in parallel with the next effects.
                cost = self._costs.evaluate
                self._begin(cost, partial(self._end_background, cost))
            return
        self._turn = None
        if not self.driver.finished:
            self._event_queue.at(self._event_queue(), self._go_on)

    def _wait(self) -> None:
        resumes = self.driver.resumes
        if resumes is not None and resumes != self._alarm:
            self._alarm = resumes
            self._event_queue.at(resumes, self.notice)
        spin = self._costs.waiting.spin
        if spin:
            self._meter.seconds += spin
            self._spinning = self._cores.begin(spin, self._sleep)
        else:
            self._sleep()

    def _sleep(self) -> None:
        self._spinning = None
        self._asleep = self._event_queue()
        self._cores.poll(1)

    def _spend(self, seconds: float, then: Action) -> None:
        """Use a core for so many CPU seconds, and count them for the role."""
        self._working = self._begin(seconds, partial(self._spent, seconds, then))

    def _begin(self, seconds: float, then: Action) -> ActiveTask | None:
        if seconds:
            return self._cores.begin(seconds, then)
        self._event_queue.at(self._event_queue(), then)
        return None

    def _spent(self, seconds: float, then: Action) -> None:
        if self._killed:
            return
        self._working = None
        self._meter.seconds += seconds
        then()

    def _cost_of_event(self, event: Event) -> float:
        messages = self._costs.messages
        match event:
            case Received(source, _) if source == ADVERSARY:
                return 0.0
            case Received(_, message):
                query = self._costs.query if isinstance(message, StepsQuery) else 0.0
                return messages.receive + messages.byte * message.payload_bytes + query
            case Malformed():
                return messages.receive
        return 0.0

    def _cost_of_effect(self, effect: Effect) -> float:
        costs = self._costs
        match effect:
            case Send(to, _) if to == ADVERSARY:
                return 0.0
            case Send(_, message):
                return costs.messages.send + costs.messages.byte * message.payload_bytes
            case Compute("train" | "audit"):
                return effect.load * sum(costs.step.draw(self._steps) for _ in range(effect.steps))
            case Compute("evaluate"):
                return costs.evaluate
            case Compute("pack"):
                return costs.pack.seconds(effect.elements)
            case Compute("adopt"):
                return costs.adopt.seconds(effect.elements)
            case Compute("combine"):
                return costs.combine.seconds(effect.elements)
            case Now("apply"):
                return costs.apply.seconds(effect.elements)
            case Record():
                return costs.messages.record
        return 0.0


class SimulatedBackground(BackgroundExecutor):
    """Computes a task immediately, and reports it as finished when the simulation calls `end`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create the executor; `clock` is the clock of the simulation."""
        self._clock = clock
        self._under_way: tuple[str, int, Any, Exception | None, float] | None = None
        self._finished: Finished | None = None

    @property
    def busy(self) -> bool:
        return self.under_way or self._finished is not None

    @property
    def under_way(self) -> bool:
        """Whether a task is running in virtual time."""
        return self._under_way is not None

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        assert not self.busy, "one task at a time"
        result = error = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        self._under_way = (task, round, result, error, self._clock())

    def end(self, cpu: float) -> None:
        """End the task, which took so many CPU seconds."""
        assert self._under_way is not None, "a task must have started"
        self._finished, self._under_way = Finished(*self._under_way, self._clock(), cpu), None

    def wait(self) -> None:
        """Return at once: the simulation has already advanced the time."""

    def take(self) -> Finished | None:
        finished, self._finished = self._finished, None
        return finished
