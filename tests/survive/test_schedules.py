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
from executed import lines, run_here
from replay.recorded import replayed
from survive.test_every_moment import MODES, OF_SERVERS, PROCESSES, run_of

from hpcps.execution import inprocess
from hpcps.execution.simulation import failures as failures_of_simulations
from hpcps.execution.simulation.driver import Simulation
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.sync.server import SyncServer
from hpcps.seeds import generator
from hpcps.spec.simulation import Modelled

LATE, LATER = (
    {"synchronous": seconds, "quorum": seconds, "asynchronous": asynchronous}
    for seconds, asynchronous in ((1e4, 100.0), (1e5, 200.0))
)
"""Seconds after which nothing goes on any more in rounds; the slots of all messages of a run take some hundred. In an
asynchronous run the others go on until then."""

EVERYONE = (*PROCESSES, "evaluator-0", *OF_SERVERS)


class Schedule(NamedTuple):
    """One order of events.

    Attributes:
        process: the process that is killed.
        after: how many messages have arrived before.
        noticed_late: whether the others know of it late.
        repaired_late: whether its replacement begins late.
        delayed: the numbers of the messages that come late.
        second: another process that is killed, and after how many messages; None if none is.
    """

    process: str
    after: int
    noticed_late: bool
    repaired_late: bool
    delayed: tuple[int, ...] = ()
    second: tuple[str, int] | None = None


class Slots(Simulation):
    """Delivers one message per second, in the order in which they are sent; late ones, and those behind them, later."""

    delayed: tuple[int, ...] = ()
    later = 0.0
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
        # That of two processes: a standby in the place of its server gets what was sent to both before what comes now.
        channel = self._processes[source], self._processes[to]
        moment = self._channels[channel] = max(self._slot + late, self._channels[channel])
        type(self).sent += 1
        self.clock.at(moment, deliver)


def play(mode, folder, schedule, process):
    """Execute a run that survives the loss of a process under a schedule, or undisturbed; return it."""
    failures = []
    if schedule is not None:
        times = {"noticed": LATE[mode] * schedule.noticed_late, "repair": LATE[mode] * schedule.repaired_late}
        killed = [(process, schedule.after), *([schedule.second] if schedule.second else [])]
        failures = [{"process": each, "at": [after + 0.5], **times} for each, after in killed]
    run = run_of(mode, *failures, servers=process in OF_SERVERS, evaluators=int(process == "evaluator-0"))
    run = run.model_copy(update={"simulation": Modelled(failures=run.simulation.failures, hosts=2)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inprocess, "Simulation", Slots)
        patch.setattr(failures_of_simulations, "_LOOK_AGAIN", 0.5)
        patch.setattr(Slots, "delayed", schedule.delayed if schedule else ())
        patch.setattr(Slots, "later", LATER[mode])
        run_here(run, folder)
    return run


def check(mode, schedule, folder, *, replays=False):
    """Execute a run under a schedule, and check what is true of every run."""
    try:
        run = play(mode, folder / "run", schedule, schedule.process)
        assert RunDirectory(folder / "run").done
        if run.topology.evaluators:
            evaluated = lines(folder / "run", "validator-0", "evaluation")
            assert run.train.epochs in [line["epoch"] for line in evaluated]
        else:
            MODES[mode][0].assert_consistent(run, folder / "run")
        if replays:
            result, _ = replayed(RunDirectory(folder / "run"), folder / "replay")
            assert result.difference is None, result.difference
            shutil.rmtree(folder / "replay")
    except Exception as error:
        error.add_note(f"{mode}: {schedule}")
        raise
    shutil.rmtree(folder / "run")


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    """How many messages an undisturbed run of a mode has, that survives the loss of a process."""
    found = {}
    for mode, several in product(MODES, (PROCESSES, OF_SERVERS, ("evaluator-0",))):
        play(mode, tmp_path_factory.mktemp("undisturbed"), None, several[0])
        found |= dict.fromkeys(product([mode], several), Slots.sent)
    return found


@pytest.mark.parametrize("process", EVERYONE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 60])
@pytest.mark.sample(1, 5)
def test_every_schedule_without_a_late_message(mode, process, every, messages, tmp_path):
    """All are tried: each moment, and each way in which the loss is noticed and repaired."""
    first = (EVERYONE.index(process) * 7) % every
    for after in range(first, messages[mode, process], every):
        for noticed_late, repaired_late in product((False, True), repeat=2):
            check(mode, Schedule(process, after, noticed_late, repaired_late), tmp_path)


def random_schedule(mode, seed, messages):
    """Return a schedule with one or two late messages; every other one of an asynchronous run kills two processes."""
    draw = generator(seed, "server", 0, "schedules")
    process = str(draw.choice(EVERYONE))
    count = messages[mode, process]
    noticed, repaired = (bool(draw.integers(2)) for _ in range(2))
    # Replacements send messages, too.
    delayed = tuple(sorted(int(n) for n in draw.integers(0, count + count // 4, int(draw.integers(1, 3)))))
    schedule = Schedule(process, int(draw.integers(0, count)), noticed, repaired, delayed)
    if mode == "asynchronous" and draw.random() < 0.5:
        other = str(draw.choice([each for each in PROCESSES if each != process]))
        schedule = schedule._replace(second=(other, int(draw.integers(0, count))))
    return schedule


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "block", [*range(2), *(pytest.param(block, marks=pytest.mark.soak) for block in range(2, 2000))]
)
@pytest.mark.sample(1, 3)
def test_random_schedules_with_late_messages(mode, block, messages, tmp_path):
    """Each block has a few, some of which are replayed; `make soak` has 100,000."""
    for seed in range(17 * block, 17 * block + (17 if block > 1 else 5)):
        check(mode, random_schedule(mode, seed, messages), tmp_path, replays=seed % 5 == 0)


FOUND = {
    "a model comes before the last part of one whose validator is lost": (
        "synchronous", Schedule("validator-0", 36, True, False, (49,)),
    ),
    "the coordinator is lost after its initial model has reached one server": (
        "synchronous", Schedule("validator-0", 31, True, True, (0,)),
    ),
    "a validator that serves others' workers has a quorum": ("quorum", Schedule("validator-1", 0, True, True)),
}  # fmt: skip
"""What random schedules have found."""


@pytest.mark.parametrize("what", FOUND)
def test_a_schedule_that_has_found_a_fault(what, tmp_path):
    mode, schedule = FOUND[what]
    check(mode, schedule, tmp_path, replays=True)


@pytest.mark.parametrize(
    ("what", "role", "method"),
    [
        ("a model comes before the last part of one whose validator is lost", ModelInbox, "clear"),
        ("the coordinator is lost after its initial model has reached one server", SyncServer, "_give_again"),
    ],
)
def test_a_planted_fault_is_found(what, role, method, tmp_path, monkeypatch):
    """These tests can fail."""

    def clear(self):
        self._came = [0] * len(self._shards)

    planted = {"clear": clear, "_give_again": lambda self, known: iter(())}
    monkeypatch.setattr(role, method, planted[method])
    with pytest.raises(Exception, match=r"no role can proceed|cannot use the model"):
        check(*FOUND[what], tmp_path)
