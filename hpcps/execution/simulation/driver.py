"""Execute the roles of a run in one process, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf

from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.simulation.failures import Failures
from hpcps.execution.simulation.process import Meter, Process, SimulatedBackground
from hpcps.execution.simulation.sharing import Action, EventQueue, HostCores, Network
from hpcps.execution.stopwatch import Stopwatch
from hpcps.launch.hostfile import Host
from hpcps.launch.placement import place
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Replaced
from hpcps.protocol.roster import ADVERSARY, Roster, standby_of
from hpcps.seeds import generator
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Costs, Machine, Measured, Modelled
from hpcps.transport.inproc import Exchange


class Simulation:
    """The simulated cluster of a run.

    Attributes:
        clock: the virtual clock, in seconds.
        exchange: delivers the messages.
    """

    def __init__(self, run: Run) -> None:
        """Build the cluster that the experiment describes.

        Raises:
            RunError: the records from which to measure the costs cannot be used.
        """
        settings = run.simulation
        assert isinstance(settings, (Modelled, Measured)), "without a simulation there is nothing to build"
        costs: Costs
        cores = settings.cores
        if isinstance(settings, Measured):
            # It imports scipy, which takes longer than a small run.
            from hpcps.execution.simulation.calibration import fit

            measured = fit(settings.records, run)
            costs, cores = measured.costs, cores or measured.cores
        else:
            costs = settings.costs
        self._run = run
        self._costs = costs
        self.clock = EventQueue()
        width = inf if cores is None else float(cores)
        self._cores = [
            HostCores(self.clock, width, costs.waiting.demand, settings.speed) for _ in range(settings.hosts)
        ]
        self._homes = hosts_of(run, settings)
        self._network = Network(self.clock, range(settings.hosts), settings.local, settings.remote)
        self._processes: dict[Peer, Process] = {}
        roster = Roster.of(run)
        everyone = (*roster.everyone(), *roster.standbys(run))
        self._meters = {peer: Meter() for peer in everyone}
        self._backgrounds = {peer: SimulatedBackground(self.clock) for peer in everyone}
        scale = settings.model_scale if isinstance(settings, Modelled) else 1.0
        self.exchange = Exchange(self._carry, scale)

    def stopwatch(self, peer: Peer) -> Stopwatch:
        """Return the stopwatch for the record of a role."""
        return Stopwatch(self.clock, self._meters[peer], alone=True)

    def background(self, peer: Peer) -> SimulatedBackground:
        """Return the background executor of a role."""
        return self._backgrounds[peer]

    def host(self, peer: Peer) -> str:
        """Return the name of the simulated host of a role; the adversary has none."""
        return f"host{self._homes[peer]}" if peer in self._homes else "outside"

    def execute(
        self,
        drivers: dict[Peer, RoleDriver],
        guard: Callable[[RoleDriver], AbstractContextManager[None]],
        replacement: Callable[[Peer, int], RoleDriver],
    ) -> None:
        """Run the drivers until they are done or none of them can proceed.

        Args:
            drivers: one driver per role, created with the clock, exchange, stopwatches and executors from here; that of
                a lost process is removed, and that of its replacement added.
            guard: a context for the code of a driver, which reports its failures.
            replacement: returns the driver of the replacement of a lost process, which has a number.
        """

        def kill(peer: Peer) -> bool:
            if peer not in drivers or drivers[peer].finished:
                return False
            self._processes[peer].kill()
            drivers.pop(peer).kill()
            self._backgrounds[peer] = SimulatedBackground(self.clock)
            return True

        def tell(to: Peer, event: Lost | Replaced) -> None:
            if to in drivers and not drivers[to].finished:
                self.exchange.tell(to, event)
                self._processes[to].notice()

        def succeed(server: Peer, event: Lost) -> bool:
            standby = standby_of(server)
            if standby not in drivers:
                return False
            drivers[server] = drivers.pop(standby)
            self._processes[server] = self._processes[standby]
            self._homes[server] = self._homes[standby]
            self.exchange.succeed(event)
            self._processes[server].notice()
            return True

        def start(peer: Peer, incarnation: int) -> bool:
            if not failures.needs(peer, drivers):
                return False
            drivers[peer] = replacement(peer, incarnation)
            self._processes[peer] = self._process(drivers[peer], guard)
            self._processes[peer].start()
            return True

        for driver in drivers.values():
            self._processes[driver.peer] = self._process(driver, guard)
        for process in self._processes.values():
            process.start()
        failures = Failures(self._run, self.clock, kill, tell, start, succeed, self.exchange.goes_to_both)
        while self.clock.step():
            # Failures would come after the end, too.
            if failures.any and failures.over(drivers):
                break
        failures.dismiss(drivers)

    def _process(self, driver: RoleDriver, guard: Callable[[RoleDriver], AbstractContextManager[None]]) -> Process:
        peer, seed, costs = driver.peer, self._run.seed, self._costs
        if peer.role in ("server", "standby") and self._run.topology.validators:
            costs = costs.model_copy(update={"combine": costs.apply})
        streams = (generator(seed, peer.role, peer.index, "step time"), generator(seed, peer.role, peer.index, "polls"))
        if peer == ADVERSARY:  # its computations and messages take no time
            costs, cores = Costs(), HostCores(self.clock, inf, 0.0, 1.0)
        else:
            cores = self._cores[self._homes[peer]]
        return Process(driver, self.clock, cores, costs, self._meters[peer], self._backgrounds[peer], streams, guard)

    def _carry(self, source: Peer, to: Peer, size: int, arrive: Action) -> None:
        # A standby that becomes its server keeps its connections: nothing overtakes what it got as a standby.
        sender, receiver = self._processes[source], self._processes[to]

        def deliver() -> None:
            arrive()
            receiver.notice(at_once=outside)

        outside = ADVERSARY in (source, to)
        if outside:
            self.clock.at(self.clock(), deliver)
        else:
            self._network.carry((sender, receiver), (self._homes[source], self._homes[to]), size, deliver)


def hosts_of(run: Run, machine: Machine) -> dict[Peer, int]:
    """Return the number of the host of each role, from the experiment or by the placement of a launch.

    The adversary has none: what it does takes no time, so that a simulation predicts the times of an attack that needs
    no process of its own.
    """
    if machine.placement:
        homes = {Peer.parse(name): host for host, names in enumerate(machine.placement) for name in names}
    else:
        slots = -(-(run.processes - run.has_adversary) // machine.hosts)
        hosts = [Host(str(host), slots) for host in range(machine.hosts)]
        ranks = place(run.topology, hosts, standbys=run.survive.servers)
        homes = {Peer(rank.role, rank.index): int(rank.host) for rank in ranks}
    for standby in Roster.of(run).standbys(run):
        homes.setdefault(standby, (homes[Peer("server", standby.index)] + 1) % machine.hosts)
    return homes
