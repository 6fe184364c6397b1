"""One process of a simulated run: a role's turns, spread over virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import numpy as np

from hpcps.messages import Malformed, Received
from hpcps.roles.events import Aside, Compute, Effect, Event, Now, Record, Send, Settle
from hpcps.runtime.node import Node
from hpcps.simulation.agenda import Action, Agenda
from hpcps.simulation.beside import Beside
from hpcps.simulation.config import Costs
from hpcps.simulation.sharing import Cores, Job
from hpcps.transport.patience import Patience


class Meter:
    """Counts the CPU seconds of a process."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.seconds


class Process:
    """Lets virtual time pass before each of a role's effects, on the cores of its host, and while it waits.

    An effect happens when the time that it costs is over: a message leaves once it is written, `Computed` comes after
    the computation. What arrives meanwhile is looked at after the turn, as over MPI.
    """

    def __init__(
        self,
        node: Node,
        agenda: Agenda,
        cores: Cores,
        costs: Costs,
        meter: Meter,
        beside: Beside,
        streams: tuple[np.random.Generator, np.random.Generator],
        guard: Callable[[Node], AbstractContextManager[None]],
    ) -> None:
        """Take a node to drive.

        Args:
            node: what carries out the role's effects.
            agenda: the clock.
            cores: those of its host.
            costs: what its effects cost.
            meter: where its CPU seconds are counted.
            beside: the node's sideline.
            streams: random generators of its step times and of when it polls.
            guard: a context in which the node's own code runs, which reports its failures.
        """
        self.node = node
        self._agenda = agenda
        self._cores = cores
        self._costs = costs
        self._meter = meter
        self._beside = beside
        self._settling = False
        self._steps, self._polls = streams
        self._guard = guard
        self._turn: Iterator[Effect] | None = None
        self._spinning: Job | None = None
        self._asleep: float | None = None
        self._waking = False
        self._alarm: float | None = None
        self._patience = Patience()

    def start(self) -> None:
        """Begin, now."""
        self._agenda.at(self._agenda(), self._go_on)

    def notice(self) -> None:
        """Something has come, or a pause is over: look at it, once the process polls."""
        if self._spinning is not None:
            self._meter.seconds -= self._cores.cancel(self._spinning)
            self._spinning = None
            self._go_on()
        elif self._asleep is not None and not self._waking:
            self._waking = True
            interval = self._costs.waiting.interval
            if interval:
                slept = self._agenda() - self._asleep
                interval = self._polls.random() * min(interval, self._patience.interval_after(slept))
            self._agenda.at(self._agenda() + interval, self._wake)

    def _ended_beside(self, seconds: float) -> None:
        """What ran beside the role is over: the role hears of it at once if it waits for that."""
        self._beside.end(seconds)
        if self._settling:
            self._settling = False
            self._advance()
        else:
            self.notice()

    def _wake(self) -> None:
        assert self._asleep is not None
        self._cores.poll(-1)
        self._meter.seconds += self._costs.waiting.demand * (self._agenda() - self._asleep)
        self._asleep, self._waking = None, False
        self._go_on()

    def _go_on(self) -> None:
        """Take the next event, if there is one; else wait."""
        with self._guard(self.node):
            event = self.node.take()
        if event is None:
            self._wait()
            return
        self._turn = self.node.handle(event)
        self._spend(self._cost_of_event(event), self._advance)

    def _advance(self) -> None:
        """Carry out the effect whose time is over and begin the next one, to the end of the turn."""
        assert self._turn is not None
        with self._guard(self.node):
            effect = next(self._turn, None)
        if isinstance(effect, Settle) and self._beside.under_way:
            self._settling = True
            return
        if effect is not None:
            self._spend(self._cost_of_effect(effect), self._advance)
            if isinstance(effect, Aside):
                # After the effect: it is begun at this moment, and a core does it beside what comes next.
                cost = self._costs.evaluate
                self._begin(cost, partial(self._ended_beside, cost))
            return
        self._turn = None
        if not self.node.finished:
            self._agenda.at(self._agenda(), self._go_on)

    def _wait(self) -> None:
        resumes = self.node.resumes
        if resumes is not None and resumes != self._alarm:
            self._alarm = resumes
            self._agenda.at(resumes, self.notice)
        spin = self._costs.waiting.spin
        if spin:
            self._meter.seconds += spin
            self._spinning = self._cores.begin(spin, self._sleep)
        else:
            self._sleep()

    def _sleep(self) -> None:
        self._spinning = None
        self._asleep = self._agenda()
        self._cores.poll(1)

    def _spend(self, seconds: float, then: Action) -> None:
        """Use a core for so many CPU seconds of the role's."""
        self._begin(seconds, partial(self._spent, seconds, then))

    def _begin(self, seconds: float, then: Action) -> None:
        if seconds:
            self._cores.begin(seconds, then)
        else:
            self._agenda.at(self._agenda(), then)

    def _spent(self, seconds: float, then: Action) -> None:
        self._meter.seconds += seconds
        then()

    def _cost_of_event(self, event: Event) -> float:
        messages = self._costs.messages
        match event:
            case Received(_, message):
                return messages.receive + messages.byte * message.payload_bytes
            case Malformed():
                return messages.receive
        return 0.0

    def _cost_of_effect(self, effect: Effect) -> float:
        costs = self._costs
        match effect:
            case Send(_, message):
                return costs.messages.send + costs.messages.byte * message.payload_bytes
            case Compute("train"):
                return sum(costs.step.draw(self._steps) for _ in range(effect.steps))
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
