"""Small runs under schedules: each message arrives in a slot of its own, and one or two come after all others.

A schedule says which process is killed between which two messages, whether the others learn of it at once or once
nothing goes on without that, whether its replacement begins at once or then, and which messages come only then. So the
orders of messages in which a run differs from the usual one in a single message, or in two, are all there.
"""

import shutil
from collections import defaultdict
from itertools import product
from typing import NamedTuple

import pytest
from executed import run_here
from survive.test_every_moment import MODES, OF_SERVERS, PROCESSES, run_of

from hpcps.execution import inprocess
from hpcps.execution.simulation import failures as failures_of_simulations
from hpcps.execution.simulation.driver import Simulation
from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator
from hpcps.spec.simulation import Modelled

LATE, LATER = 1e4, 1e5
"""Seconds after which nothing goes on any more in rounds; the slots of all messages of a run take some hundred."""

SCALE = {"asynchronous": 0.01}
"""A factor on these where the others do not wait, and go on until then."""


class Schedule(NamedTuple):
    """One order of events.

    Attributes:
        process: the process that is killed.
        after: how many messages have arrived before.
        noticed: seconds until the others know.
        repair: seconds until its replacement begins.
        delayed: the numbers of the messages that come late.
    """

    process: str
    after: int
    noticed: float
    repair: float
    delayed: tuple[int, ...] = ()


class Slots(Simulation):
    """Delivers one message per second, in the order in which they are sent; late ones, and those behind them, later."""

    delayed: tuple[int, ...] = ()
    later = LATER
    sent = 0

    def __init__(self, run):
        super().__init__(run)
        self._slot = 0.0
        self._channels = defaultdict(float)
        type(self).sent = 0

    def _carry(self, source, to, size, arrive):
        def deliver():
            arrive()
            self._processes[to].notice(at_once=True)

        self._slot = max(self._slot, self.clock()) + 1.0
        late = self.later if self.sent in self.delayed else 0.0
        moment = self._channels[source, to] = max(self._slot + late, self._channels[source, to])
        type(self).sent += 1
        self.clock.at(moment, deliver)


def play(mode, folder, schedule=None, *, servers=False):
    """Execute a run under a schedule; return it."""
    failures = []
    if schedule is not None:
        scale = SCALE.get(mode, 1.0)
        times = {"noticed": scale * schedule.noticed, "repair": scale * schedule.repair}
        failures = [{"process": schedule.process, "at": [schedule.after + 0.5], **times}]
    run = run_of(mode, *failures, servers=servers)
    run = run.model_copy(update={"simulation": Modelled(failures=run.simulation.failures, hosts=2)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inprocess, "Simulation", Slots)
        patch.setattr(failures_of_simulations, "_LOOK_AGAIN", 0.5)
        patch.setattr(Slots, "delayed", schedule.delayed if schedule else ())
        patch.setattr(Slots, "later", LATER * SCALE.get(mode, 1.0) ** 2)
        run_here(run, folder)
    return run


def check(mode, schedule, folder):
    """Execute a run under a schedule, and check what is true of every run."""
    servers = schedule.process in OF_SERVERS
    try:
        run = play(mode, folder, schedule, servers=servers)
        assert RunDirectory(folder).done
        MODES[mode][0].assert_consistent(run, folder)
    except Exception as error:
        error.add_note(f"{mode}: {schedule}")
        raise
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """How many messages an undisturbed run of a mode has, without standbys and with them."""
    found = {}
    for mode, servers in product(MODES, (False, True)):
        play(mode, tmp_path_factory.mktemp("undisturbed"), servers=servers)
        found[mode, servers] = Slots.sent
    return found


@pytest.mark.parametrize("process", [*PROCESSES, *OF_SERVERS])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 60])
@pytest.mark.sample(1, 5)
def test_every_schedule_without_a_late_message(mode, process, every, messages, tmp_path):
    """All are tried: each moment, and each way in which the loss is noticed and repaired."""
    first = ((*PROCESSES, *OF_SERVERS).index(process) * 7) % every
    for after in range(first, messages[mode, process in OF_SERVERS], every):
        for noticed, repair in product((0.0, LATE), repeat=2):
            check(mode, Schedule(process, after, noticed, repair), tmp_path / "run")


def random_schedule(mode, seed, messages):
    """Return a schedule with one or two late messages."""
    draw = generator(seed, "server", 0, "schedules")
    process = str(draw.choice([*PROCESSES, *OF_SERVERS]))
    count = messages[mode, process in OF_SERVERS]
    noticed, repair = (float(draw.choice([0.0, LATE])) for _ in range(2))
    # Replacements send messages, too.
    delayed = tuple(sorted(int(n) for n in draw.integers(0, count + count // 4, int(draw.integers(1, 3)))))
    return Schedule(process, int(draw.integers(0, count)), noticed, repair, delayed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "block", [*range(2), *(pytest.param(block, marks=pytest.mark.soak) for block in range(2, 2000))]
)
@pytest.mark.sample(1, 3)
def test_random_schedules_with_late_messages(mode, block, messages, tmp_path):
    """Each block has a few; `make soak` has 100,000."""
    for seed in range(17 * block, 17 * block + (17 if block > 1 else 5)):
        check(mode, random_schedule(mode, seed, messages), tmp_path / "run")
