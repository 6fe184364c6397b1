"""What is on its way to a standby in virtual time when the standby takes the place of its server."""

from contextlib import nullcontext
from functools import partial

import numpy as np
from simulated import spec

from hpcps.execution.simulation.driver import Simulation
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Peer, Statistics
from hpcps.protocol.roster import standby_of

SERVER, WORKER = Peer("server", 0), Peer("worker", 0)
STANDBY = standby_of(SERVER)


class Hearing:
    """Is driven as a role, and only notes what its transport gets: the numbers of messages, and what became of whom."""

    finished = False
    resumes = None
    round = 0

    def __init__(self, peer, transport):
        self.peer, self._transport = peer, transport
        self.heard = []

    def take(self):
        while (got := self._transport.receive()) is not None:
            self.heard.append(got.envelope.message.round if isinstance(got, Delivered) else type(got).__name__)

    def kill(self):
        pass


def test_what_comes_after_a_takeover_does_not_overtake_what_came_before():
    simulation = Simulation(
        spec(
            {
                "hosts": 2,
                "placement": [["worker-0", "worker-1", "server-0"], ["standby-0"]],
                "remote": {"bandwidth": 1000.0},
                "failures": [{"process": "server-0", "at": [1.0], "noticed": 0.25, "repair": 0.5}],
            },
            survive={"workers": True, "servers": True},
        )
    )
    exchange = simulation.exchange
    sender, server, standby = exchange.endpoint(WORKER), exchange.endpoint(SERVER), exchange.standby(SERVER)
    drivers = {peer: Hearing(peer, end) for peer, end in [(WORKER, sender), (SERVER, server), (STANDBY, standby)]}
    successor = drivers[STANDBY]
    # The copy of the large one is on its way to the other host for four seconds; the server has got it at once.
    for number, (moment, elements) in enumerate([(0.0, 10), (0.5, 1000), (2.0, 1)]):
        envelope = Envelope(WORKER, "run", Statistics(round=number, values=np.zeros(elements, np.float32)))
        simulation.clock.at(moment, partial(sender.send, SERVER, envelope))
    simulation.execute(
        drivers, lambda driver: nullcontext(), lambda peer, number: Hearing(peer, exchange.standby(SERVER))
    )
    assert successor.heard == [0, "Lost", 1, "Replaced", 2]
