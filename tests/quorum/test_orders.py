"""Every order of arrival of four workers, under every quorum, gives the rounds and the model of the definition.

Payloads are read in place, and memory is poisoned as soon as its owner may write to it.
"""

import itertools
import random
import weakref
from collections import deque

import numpy as np
import pytest
from quorum.definition import Definition, step
from toy_trainers import Toy

from hpcps.compression import Int8
from hpcps.execution.inprocess import take_turns
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import make_role, make_training_role
from hpcps.execution.simulation.sharing import EventQueue
from hpcps.execution.stopwatch import Stopwatch
from hpcps.numerics.layout import Layout
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Flag, Peer, Update
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import Roster
from hpcps.roles.resources import Resources
from hpcps.roles.sync.quorum import QuorumCollector
from hpcps.roles.sync.shard import SyncShard
from hpcps.spec.schema import Communication, Run
from hpcps.transport.base import Traffic

LAYOUT = Layout.of([(f"b{b}", (16,)) for b in range(6)])
SECONDS = (1.0, 1.2718, 1.7321, 2.9142)
"""Of a step of each worker. No sums of them are equal, so that no two answers come at the same moment."""
TOPOLOGIES = [(0, 1), (0, 2), (1, 1), (2, 2)]
STEPS, ROUNDS = 3, 5


class Steps(Toy):
    """Adds numbers that tell whose step it is, and which."""

    def __init__(self, index, memory, steps):
        super().__init__(LAYOUT, steps_per_epoch=steps)
        self.index, self._memory, self.begun = index, memory, []

    def copy_from(self, values):
        super().copy_from(values)
        assert np.isfinite(values).all(), "the memory of a model was written while it was read"
        self.begun.append(float(values[0]))
        for array in self._memory:  # it has the next model, so it may write to what it has sent
            array[:] = np.nan

    def step(self):
        self.x += np.float32(step(self.index, self.steps_done))


class Post:
    """A mailbox whose messages are read where their sender keeps them."""

    def __init__(self, owner, boxes):
        self.owner, self.boxes, self.traffic = owner, boxes, Traffic()
        boxes[owner] = deque()

    def send(self, to, envelope):
        payload = None
        if envelope.payload is not None and envelope.payload.size:
            payload = envelope.payload[:]
            payload.flags.writeable = False
        self.boxes[to].append((self.owner, envelope.header, payload))

    def receive(self):
        if not self.boxes[self.owner]:
            return None
        source, header, payload = self.boxes[self.owner].popleft()
        return Delivered(source, Envelope.decode(header, payload))


class Kept:
    """A run's folder in memory, which takes the final models."""

    def __init__(self):
        self.saved = {}

    def save(self, name, values):
        self.saved[name] = values.copy()
        return ""

    def fail(self, *_):
        pass


class Record:
    """A record in memory."""

    run_id, time = "toy", 0.0

    def __init__(self):
        self.lines = []

    def write(self, event, round=None, **fields):
        self.lines.append({"event": event, "round": round, **fields})

    def sync(self):
        pass

    def close(self):
        pass


@pytest.fixture
def poisoned(monkeypatch):
    turn = SyncShard.turn

    def poison(shard, *args):
        turn(shard, *args)
        for memory in (shard.coming.model, shard.coming.held, shard.coming.room):
            memory[:] = np.nan

    monkeypatch.setattr(SyncShard, "turn", poison)


def spec(seconds, validators, servers, partition="auto", rounds=ROUNDS, **train):
    classes = [{"name": f"w{k}", "workers": [k], "seconds": each} for k, each in enumerate(seconds)]
    return Run.model_validate(
        {
            "name": "orders",
            "topology": {"servers": servers, "validators": validators, "workers": len(seconds)},
            "transport": {"kind": "inproc", "partition": partition},
            "model": {"name": "mlp"},
            "data": {"name": "digits"},
            "train": {"epochs": rounds, "local_steps": STEPS, **train},
            "heterogeneity": {"classes": classes},
            "checkpoint": {"every": 0},
        }
    )


def play(run, schedule=take_turns):
    """Play a run; return its records, the final model and the trainers."""
    directory, boxes, clock = Kept(), {}, EventQueue()
    records, trainers, drivers = {}, {}, []
    for peer in Roster.of(run).everyone():
        memory, records[peer] = [], Record()

        def allocate(size, memory=memory):
            memory.append(np.empty(size, np.float32))
            return memory[-1]

        resources = Resources(allocate)
        if peer.role == "server":
            role = make_role(run.identified("toy"), peer, resources)
        else:
            trainers[peer] = Steps(peer.index, memory, STEPS)
            role = make_training_role(run.identified("toy"), peer, trainers[peer], resources)
        watch = Stopwatch(cpu=float)  # to read the CPU seconds takes a quarter of the time of a play
        drivers.append(RoleDriver(role, Post(peer, boxes), records[peer], directory, clock=clock, stopwatch=watch))
    schedule(drivers, directory, clock)
    model = np.concatenate([directory.saved[f"final/server-{s}"] for s in range(run.topology.servers)])
    return {str(peer): record.lines for peer, record in records.items()}, model, trainers


def needed(quorum, members):
    return -(-quorum * members // 4)


def assert_as_defined(run, **more):
    topology, train = run.topology, run.train
    seconds = [run.heterogeneity.classes[k].seconds for k in range(4)]
    groups = [tuple(range(v, 4, topology.validators)) for v in range(topology.validators)] or [(0, 1, 2, 3)]
    expected = Definition(
        seconds, groups, [needed(train.quorum, len(group)) for group in groups], ROUNDS, steps=STEPS, late=train.late,
        abandon=train.abandon, grace=train.grace, coordinator=None if topology.validators else 0,
        weights=None if run.validation.weights == "equal" else run.validation.weights,
    )  # fmt: skip
    records, model, trainers = play(run, **more)
    combiners = [f"validator-{v}" for v in range(topology.validators)] or ["server-0"]
    for combiner, rounds in zip(combiners, expected.rounds, strict=True):
        lines = [line for line in records[combiner] if line["event"] == "round"]
        assert [line["participants"] for line in lines] == [sorted(each["arrived"]) for each in rounds]
        if run.has_quorum:
            assert [{key: line[key] for key in each} for line, each in zip(lines, rounds, strict=True)] == rounds
    assert not [line for lines in records.values() for line in lines if line["event"] == "rejected"]
    np.testing.assert_allclose(model, np.full(LAYOUT.size, expected.model), rtol=1e-5)
    return records, model, trainers


PARTS = [0, *(pytest.param(part, marks=pytest.mark.soak) for part in (1, 2, 3))]
MODES = [(4, "drop", False), *itertools.product((1, 2, 3), ("drop", "next"), (False, True))]


@pytest.mark.sample(4, 8)
@pytest.mark.parametrize(("quorum", "late", "abandon"), MODES)
@pytest.mark.parametrize("part", PARTS)
def test_all_orders_of_arrival(part, quorum, late, abandon, poisoned):
    """A part plays every order once, each with another of the topologies."""
    for number, order in enumerate(itertools.permutations(SECONDS)):
        validators, servers = TOPOLOGIES[(number + part) % len(TOPOLOGIES)]
        assert_as_defined(spec(order, validators, servers, quorum=quorum, late=late, abandon=abandon))


PARTITIONED = [(2.9142, 1.0, 1.2718, 1.7321), (1.2718, 2.9142, 1.0, 1.7321), (1.0, 1.7321, 1.2718, 29.142)]


@pytest.mark.thorough
@pytest.mark.parametrize("part", PARTS[:3])
@pytest.mark.parametrize(("validators", "servers"), TOPOLOGIES)
def test_partitions_and_grace_change_no_decision(part, validators, servers, poisoned):
    """There are more partitions than a worker may be ahead of a combiner. A part plays each mode with one order."""
    for number, (late, abandon, grace) in enumerate(itertools.product(("drop", "next"), (False, True), (0.0, 1.5))):
        order = PARTITIONED[(number + part) % len(PARTITIONED)]
        keys = {"quorum": 2, "late": late, "abandon": abandon, "grace": grace}
        _, model, _ = assert_as_defined(spec(order, validators, servers, 64, **keys))
        np.testing.assert_array_equal(model, play(spec(order, validators, servers, **keys))[1])


@pytest.mark.parametrize("partition", [64, "auto"])
@pytest.mark.parametrize(("validators", "servers"), TOPOLOGIES[:3])
def test_an_answer_at_the_moment_of_the_last_of_the_quorum_is_dropped_whole(partition, validators, servers, poisoned):
    """The first of equal moments are those of the smallest indices; the worker trains on from the next model."""
    run = spec((1.0, 1.0, 1.0, 29.0), validators, servers, partition, rounds=4, quorum=2)
    records, model, _ = play(run)
    closed = [line for line in records["validator-0" if validators else "server-0"] if line["event"] == "round"]
    assert [(line["participants"], line["dropped"]) for line in closed[:3]] == [([0, 1], [[2, 0]])] * 3
    assert closed[3]["participants"] == [0, 1, 2]
    lines = {k: [line for line in records[f"worker-{k}"] if line["event"] == "round"] for k in range(4)}
    taken = [[(0, n), (1, n)] for n in range(3)] + [[(0, 3), (1, 3), (2, 3)]]
    means = [sum(sum(update(lines[k], k, made)) for k, made in each) / len(each) for each in taken]
    np.testing.assert_allclose(model, np.full(LAYOUT.size, sum(means)), rtol=1e-5)


def at_random(seed):
    """Return a schedule in which for a while always the same roles go on, so that others fall far behind."""
    chance = random.Random(seed)

    def schedule(drivers, directory, clock):
        while left := [driver for driver in drivers if not driver.finished]:
            chance.shuffle(left)
            some = left[: chance.randint(1, len(left))]
            for _ in range(chance.choice((3, 30, 300))):
                if any([not driver.finished and driver.step() for driver in some]):  # noqa: C419 (a turn for each)
                    continue
                # The clock does not wait for the others.
                pauses = [driver.resumes for driver in some if driver.resumes is not None]
                if not pauses:
                    break
                clock.advance(min(pauses))
            if not any(driver.step() for driver in left if not driver.finished):
                pauses = [driver.resumes for driver in left if driver.resumes is not None]
                assert pauses or all(driver.finished for driver in left), [driver.waiting_for for driver in left]
                clock.advance(min(pauses, default=0.0))

    return schedule


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("validators", "servers"), TOPOLOGIES)
def test_any_interleaving_combines_what_the_records_say(validators, servers, seed, poisoned):
    """A role may adopt a model long after others have gone on, and messages of different roles overtake each other."""
    chance = random.Random(seed)
    keys = {"quorum": chance.choice((1, 2, 3)[: 4 - max(validators, 1)]), "late": chance.choice(("drop", "next"))}
    keys |= {"abandon": chance.random() < 0.5, "grace": chance.choice((0.0, 0.5))}
    run = spec([0.001] * 4, validators, servers, chance.choice((64, "auto")), rounds=8, **keys)
    if seed % 2:  # late workers get whole models, others differences
        compression = Int8(direction="model", min_bytes=0)
        run = run.model_copy(update={"communication": Communication(compression=compression)})
    records, model, _ = play(run, at_random(seed))
    lines = {name: [line for line in each if line["event"] == "round"] for name, each in records.items()}
    assert not [line for each in records.values() for line in each if line["event"] == "rejected"]
    combiners = [f"validator-{v}" for v in range(validators)] or [f"server-{s}" for s in range(servers)]
    expected, seen = 0.0, set()
    for round, closed in enumerate(zip(*(lines[name] for name in combiners), strict=True)):
        if not validators:
            assert len({str([line["arrived"], line["participants"], line["late"]]) for line in closed}) == 1
        means = []
        for line in closed[: validators or 1]:
            assert len(line["arrived"]) >= run.updates_needed(4 // (validators or 1))
            ages = dict(map(tuple, line["late"]))
            taken = [(k, round - ages.get(k, 0)) for k in line["participants"]]
            assert not seen & set(taken)
            seen |= set(taken)
            updates = [sum(update(lines[f"worker-{k}"], k, made)) for k, made in taken]
            means.append(sum(updates) / len(updates) if updates else 0.0)
        expected += sum(means) / len(means)
    np.testing.assert_allclose(model, np.full(LAYOUT.size, expected), rtol=1e-5)


def update(lines, worker, round):
    """Return the steps of a worker's round."""
    place = next(n for n, line in enumerate(lines) if line["round"] == round)
    begun = lines[place - 1]["step"] if place else 0
    return [step(worker, done) for done in range(begun, lines[place]["step"])]


def test_what_has_come_of_a_dropped_update_is_released_when_the_round_closes():
    run = spec((1.0,) * 3, 0, 1, partition=64, quorum=2, late="drop")
    peers = [Peer("worker", k) for k in range(3)]
    parts = [Partition.of(LAYOUT, cut) for cut in ((0, 48), (48, 96))]
    collector = QuorumCollector(Peer("server", 0), run.identified("run"), peers, parts)

    def send(worker, partition):
        payload, mask = np.ones(48, np.float32), np.ones(3, np.bool_)
        update = Update(round=0, shard=0, partition=partition, flags=Flag.NONE, mask=mask, values=payload)
        list(collector.put(worker, update, 0, float(worker.index)))
        return weakref.ref(payload)

    kept = [send(worker, 0) for worker in peers]
    assert all(payload() is not None for payload in kept)
    list(collector.close(0, Flag.NONE))
    assert [payload() is not None for payload in kept] == [True, True, False]
