"""When processes fail in a simulation, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from hpcps.errors import RunError
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.simulation.sharing import EventQueue
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, STANDBY, Roster, standby_of
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.spec.simulation import NoSimulation, ProcessFailure

_CAUSE = "a failure of the simulation"
_LOOK_AGAIN = 1e-3


class Failures:
    """Kills processes at the times of the experiment, tells the others, and starts replacements.

    Attributes:
        any: whether the experiment has failures.
    """

    def __init__(
        self,
        run: Run,
        clock: EventQueue,
        kill: Callable[[Peer], bool],
        tell: Callable[[Peer, Lost | Replaced], None],
        start: Callable[[Peer, int], bool],
        succeed: Callable[[Peer, Lost], bool],
        goes_to_both: Callable[[Peer], bool],
    ) -> None:
        """Schedule the failures.

        Args:
            run: the run.
            clock: the virtual clock.
            kill: kills a process; returns whether it was still running.
            tell: tells a role what became of another process.
            start: starts the replacement of a process, which has a number; returns whether the run still needs it.
            succeed: lets the standby of a lost server take its place; returns whether there is one.
            goes_to_both: returns whether all messages to a server that its new standby does not get have arrived.
        """
        self._lost: set[Peer] = set()
        self._replacements: Counter[Peer] = Counter()
        self._clock, self._kill, self._tell, self._start, self._succeed = clock, kill, tell, start, succeed
        self._goes_to_both = goes_to_both
        self._run, self._roster = run, Roster.of(run)
        servers = self._roster.all_servers() if run.survive.servers else ()
        self._lossable = (*self._roster.replaceable(run), *servers, *self._roster.standbys(run))
        machine = run.simulation
        failures = () if isinstance(machine, NoSimulation) else machine.failures
        self.any = bool(failures)
        for number, failure in enumerate(failures):
            for peer in self._concerned(failure):
                for moment in failure.at:
                    clock.at(moment, partial(self._fail, peer, failure, lambda: None))
                if failure.every is not None:
                    stream = generator(run.seed, peer.role, peer.index, f"failures {number}")
                    self._schedule(peer, failure, partial(stream.exponential, failure.every))
        # The lost processes of which others know: when each failed.
        self._noticed: dict[Peer, float] = {}

    def needs(self, peer: Peer, drivers: Mapping[Peer, RoleDriver]) -> bool:
        """Return whether the replacement of a process may take part: one of the roles that let it do so goes on."""
        deciders = (Peer("server", peer.index),) if peer.role == STANDBY else self._roster.deciders_of(self._run, peer)
        return any(decider not in drivers or not drivers[decider].finished for decider in deciders)

    def over(self, drivers: Mapping[Peer, RoleDriver]) -> bool:
        """Return whether all processes are done, but for replacements that came too late for the last model."""
        return all(driver.finished or self._waits(driver) for driver in drivers.values())

    def dismiss(self, drivers: dict[Peer, RoleDriver]) -> None:
        """Remove replacements that came too late, if the run is over."""
        if self.over(drivers):
            for peer in [peer for peer, driver in drivers.items() if not driver.finished]:
                del drivers[peer]

    def _waits(self, driver: RoleDriver) -> bool:
        """Return whether a process is a replacement that does not take part yet."""
        return bool(self._replacements[driver.peer]) and not driver.round

    def _concerned(self, failure: ProcessFailure) -> Iterator[Peer]:
        return (peer for peer in self._lossable if failure.process in (peer.role, str(peer)))

    def _schedule(self, peer: Peer, failure: ProcessFailure, draw: Callable[[], float]) -> None:
        again = partial(self._schedule, peer, failure, draw)
        self._clock.at(self._clock() + draw(), partial(self._fail, peer, failure, again))

    def _fail(self, peer: Peer, failure: ProcessFailure, again: Callable[[], None]) -> None:
        if peer in self._lost:
            again()
        elif self._kill(peer):
            self._lost.add(peer)
            self._clock.at(self._clock() + failure.noticed, partial(self._notice, peer, failure, self._clock(), again))

    def _notice(self, peer: Peer, failure: ProcessFailure, since: float, again: Callable[[], None]) -> None:
        if peer.role == "server":
            if not self._succeed(peer, Lost(peer, _CAUSE, since)):
                raise RunError(f"{peer} is lost, and so is its standby: start the run again; it goes on")
            self._lost.discard(peer)
            self._clock.at(self._clock() + failure.repair, partial(self._stand_by, standby_of(peer), again))
            return
        if peer.role == STANDBY:
            self._tell(Peer("server", peer.index), Lost(peer, _CAUSE, since))
            self._clock.at(self._clock() + failure.repair, partial(self._stand_by, peer, again))
            return
        self._noticed[peer] = since
        combiners = self._roster.all_validators() if peer.role == "worker" else ()
        told = (SERVER_0, *combiners, *self._roster.standbys(self._run))
        for to in told if peer != EVALUATOR else (self._roster.coordinator,):
            self._tell(to, Lost(peer, _CAUSE, since, incarnation=self._replacements[peer]))
        self._clock.at(self._clock() + failure.repair, partial(self._replace, peer, again))

    def _replace(self, peer: Peer, again: Callable[[], None]) -> None:
        number = self._replacements[peer] + 1
        if self._start(peer, number):
            self._replacements[peer] = number
            self._lost.discard(peer)
            del self._noticed[peer]
            senders = self._senders_to(peer)
            self._catch_up(peer, senders)
            servers = (*self._roster.all_servers(), *self._roster.standbys(self._run)) if peer != EVALUATOR else ()
            for to in (*servers, *senders):
                self._tell(to, Replaced(peer, number))
            again()

    def _senders_to(self, peer: Peer) -> tuple[Peer, ...]:
        """Return the roles that send a process messages, without the servers."""
        roster = self._roster
        if peer == EVALUATOR:
            return (roster.coordinator,)
        evaluators = (EVALUATOR,) if roster.evaluator and peer == roster.coordinator else ()
        return (*(roster.all_validators() if peer.role == "worker" else roster.all_workers()), *evaluators)

    def _stand_by(self, standby: Peer, again: Callable[[], None]) -> None:
        """Give a server a new standby."""
        number = self._replacements[standby] + 1
        if self._start(standby, number):
            self._replacements[standby] = number
            self._lost.discard(standby)
            self._announce(standby, number)
        again()

    def _announce(self, standby: Peer, number: int) -> None:
        """Tell a server of its new standby, after the messages that the standby does not get."""
        server = Peer("server", standby.index)
        if standby in self._lost or self._replacements[standby] != number:
            return
        if self._goes_to_both(server):
            self._tell(server, Replaced(standby, number))
        else:
            self._clock.at(self._clock() + _LOOK_AGAIN, partial(self._announce, standby, number))

    def _catch_up(self, peer: Peer, others: tuple[Peer, ...]) -> None:
        """Tell a replacement which of those that send it messages are replacements, and which are lost."""
        for other in others:
            if number := self._replacements[other]:
                self._tell(peer, Replaced(other, number))
            if other.role != "validator" and other in self._noticed:
                lost = Lost(other, _CAUSE, self._noticed[other], incarnation=self._replacements[other])
                self._tell(peer, lost)
