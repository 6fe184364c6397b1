"""Plays a run's roles in one process, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf

from hpcps.launch.hostfile import Host
from hpcps.launch.placement import place
from hpcps.messages import Peer
from hpcps.runtime.node import Node
from hpcps.runtime.stopwatch import Stopwatch
from hpcps.seeds import generator
from hpcps.simulation.agenda import Action, Agenda
from hpcps.simulation.beside import Beside
from hpcps.simulation.calibration import fit
from hpcps.simulation.config import Costs, Machine, Measured, Modelled
from hpcps.simulation.network import Network
from hpcps.simulation.process import Meter, Process
from hpcps.simulation.sharing import Cores
from hpcps.spec.schema import Run
from hpcps.transport.inproc import Exchange


class Simulation:
    """The machine that a run is imagined on.

    Attributes:
        clock: its time in seconds.
        exchange: carries the messages.
    """

    def __init__(self, run: Run) -> None:
        """Build the machine that the experiment describes.

        Raises:
            RunError: the records to measure costs from cannot be used.
        """
        settings = run.simulation
        assert isinstance(settings, (Modelled, Measured)), "without a simulation there is nothing to build"
        costs: Costs
        cores = settings.cores
        if isinstance(settings, Measured):
            measured = fit(settings.records, run)
            costs, cores = measured.costs, cores or measured.cores
        else:
            costs = settings
        self._run = run
        self._costs = costs
        self.clock = Agenda()
        homes = hosts_of(run, settings)
        width = inf if cores is None else float(cores)
        self._cores = [Cores(self.clock, width, costs.waiting.demand, settings.speed) for _ in range(settings.hosts)]
        self._homes = homes
        self._network = Network(self.clock, homes, settings.local, settings.remote)
        self._processes: dict[Peer, Process] = {}
        self._meters = {peer: Meter() for peer in homes}
        self._beside = {peer: Beside(self.clock) for peer in homes}
        self.exchange = Exchange(self._carry)

    def stopwatch(self, peer: Peer) -> Stopwatch:
        """Return what the times in a role's record are to be measured by."""
        return Stopwatch(self.clock, self._meters[peer], alone=True)

    def sideline(self, peer: Peer) -> Beside:
        """Return where that runs which a role wants beside its own work."""
        return self._beside[peer]

    def host(self, peer: Peer) -> str:
        """Return the name of a role's imagined host."""
        return f"host{self._homes[peer]}"

    def play(self, nodes: Sequence[Node], guard: Callable[[Node], AbstractContextManager[None]]) -> None:
        """Let the nodes do their work, until they are done or none of them can go on.

        Args:
            nodes: one for each role, made with this clock, exchange, stopwatches and sidelines.
            guard: a context in which a node's own code runs, which reports its failures.
        """
        for node in nodes:
            self._processes[node.peer] = self._process(node, guard)
        for process in self._processes.values():
            process.start()
        while self.clock.step():
            pass

    def _process(self, node: Node, guard: Callable[[Node], AbstractContextManager[None]]) -> Process:
        peer, seed, costs = node.peer, self._run.seed, self._costs
        if peer.role == "server" and self._run.topology.validators:
            costs = costs.model_copy(update={"combine": costs.apply})
        streams = (generator(seed, peer.role, peer.index, "step time"), generator(seed, peer.role, peer.index, "polls"))
        cores = self._cores[self._homes[peer]]
        return Process(node, self.clock, cores, costs, self._meters[peer], self._beside[peer], streams, guard)

    def _carry(self, source: Peer, to: Peer, size: int, arrive: Action) -> None:
        def deliver() -> None:
            arrive()
            self._processes[to].notice()

        self._network.carry(source, to, size, deliver)


def hosts_of(run: Run, machine: Machine) -> dict[Peer, int]:
    """Return the number of the host of each role: as the experiment says, or as the launcher would place them."""
    if machine.placement:
        named = [(name.rpartition("-"), host) for host, names in enumerate(machine.placement) for name in names]
        return {Peer(role, int(index)): host for (role, _, index), host in named}
    topology = run.topology
    slots = -(-(topology.workers + topology.validators + topology.servers) // machine.hosts)
    ranks = place(topology, [Host(str(host), slots) for host in range(machine.hosts)])
    return {Peer(rank.role, rank.index): int(rank.host) for rank in ranks}
