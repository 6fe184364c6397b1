"""The exchanges without servers do what their definitions say, in whatever order messages arrive, and stay sound."""

import random
from collections import deque
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from toy_trainers import Quadratic, play, spec

from hpcps.errors import RunError
from hpcps.numerics.layout import Layout
from hpcps.protocol.envelope import Envelope
from hpcps.protocol.messages import Flag, InitialWeights, NextModel, PartialSum, Peer
from hpcps.protocol.received import Malformed, Received, Reduced
from hpcps.protocol.roster import Roster
from hpcps.roles.collective.averager import AllreduceAverager, Contribution, RingAverager
from hpcps.roles.collective.worker import CollectiveWorker
from hpcps.roles.events import Now, Record, Reduce, Send

LAYOUT = Layout.of([("a", (70,)), ("b", (1,)), ("c", (30,))])


def run_of(exchange, workers, **tables):
    tables = {"train": {"mode": "sync", "exchange": exchange}, **tables}
    return spec("average", servers=0, validators=0, workers=workers, **tables)


# The definitions, written down once more.


def ring(model, updates, present):
    n, d = len(updates), model.size
    cuts = [min(d, -(-d * c // n // 16) * 16) for c in range(n)] + [d]
    coming = model.copy()
    for c in range(n):
        where = slice(cuts[c], cuts[c + 1])
        total = updates[c][where]
        for k in range(1, n):
            total = total + updates[(c + k) % n][where]
        change = np.zeros_like(total)
        finite = np.isfinite(total)
        change[finite] = total[finite] / np.float32(max(1, sum(present)))
        coming[where] = model[where] + change
    return coming


def allreduce(model, updates, present):
    n, m = len(updates), max(1, sum(present))
    bits = (n - 1).bit_length()
    coming = model.copy()
    for block in LAYOUT.blocks:
        largest = max(abs(Fraction(float(x))) for update in updates for x in update[block.offset : block.stop])
        exponent = -149
        while largest and Fraction(2) ** exponent <= largest:
            exponent += 1
        while largest and Fraction(2) ** (exponent - 1) > largest:
            exponent -= 1
        unit = Fraction(2) ** (exponent + bits - 53)
        for i in range(block.offset, block.stop):
            total = sum(round(Fraction(float(update[i])) / unit) for update in updates) * unit
            assert Fraction(float(total)) == total, "a sum is exact in float64"
            coming[i] = model[i] + np.float32(float(total) / m)
    return coming


class Net:
    """Averagers and the messages between them, of which any that may arrive next arrives next."""

    def __init__(self, exchange, run, model, chance):
        self.exchange, self.chance = exchange, chance
        self.workers = Roster.of(run).readers()
        self.models = [model.copy() for _ in self.workers]
        self.averagers = [
            RingAverager(peer, run.identified("toy"), LAYOUT, values)
            if exchange == "ring"
            else AllreduceAverager(peer, run, LAYOUT, values)
            for peer, values in zip(self.workers, self.models, strict=True)
        ]
        self.ways = {}
        self.reduced = {}
        self.records = []
        for k, averager in enumerate(self.averagers):
            self.carry_out(k, averager.start())

    def carry_out(self, k, effects):
        for effect in effects:
            match effect:
                case Now(work=work):
                    with np.errstate(over="ignore"):
                        work()
                case Send(to, message):
                    sent = Envelope(self.workers[k], "toy", message)
                    copied = Envelope.decode(sent.header, message.payload.copy())
                    self.ways.setdefault((k, to.index), deque()).append(copied.message)
                case Reduce(values, operation):
                    self.reduced[k] = values, operation
                case Record(event, fields):
                    self.records.append((event, fields))

    def play(self, rounds):
        """Play rounds of contributions; each worker is at most a round ahead of others."""
        at = [0] * len(self.workers)
        while True:
            ready = [k for k, a in enumerate(self.averagers) if a.done and at[k] < len(rounds)]
            moves = [("begin", k) for k in ready] + [("arrive", way) for way, left in self.ways.items() if left]
            if len(self.reduced) == len(self.workers):
                moves.append(("reduce", None))
            if not moves:
                break
            kind, what = self.chance.choice(moves)
            if kind == "begin":
                at[what] += 1
                self.carry_out(what, self.averagers[what].begin(rounds[at[what] - 1][what]))
            elif kind == "arrive":
                source, to = what
                event = Received(self.workers[source], self.ways[what].popleft())
                assert self.averagers[to].takes(event)
                self.carry_out(to, self.averagers[to].take(event, at[to] - self.busy(to)))
            else:
                self.reduce()
        assert at == [len(rounds)] * len(at)
        assert all(averager.done for averager in self.averagers)

    def busy(self, k):
        return not self.averagers[k].done

    def reduce(self):
        """Combine the arrays in a random order and grouping."""
        (operation,) = {operation for _, operation in self.reduced.values()}
        left = [values.copy() for values, _ in self.reduced.values()]
        while len(left) > 1:
            first, second = (left.pop(self.chance.randrange(len(left))) for _ in range(2))
            left.append(first + second if operation == "sum" else np.maximum(first, second))
        given, self.reduced = self.reduced, {}
        for k, (values, _) in given.items():
            values[:] = left[0]
            self.carry_out(k, self.averagers[k].take(Reduced(values), 0))


values = arrays.arrays(np.float32, LAYOUT.size, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
ordinary = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)
)


@pytest.mark.thorough
@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data())
@pytest.mark.parametrize("exchange", ["ring", "allreduce"])
def test_every_worker_has_the_model_of_the_definition(exchange, data):
    n = data.draw(st.integers(1, 7), "workers")
    rounds = data.draw(st.integers(1, 2), "rounds")
    partition = data.draw(st.sampled_from(["auto", 64]), "partition") if exchange == "ring" else "auto"
    updates = [[data.draw(values | ordinary) for _ in range(n)] for _ in range(rounds)]
    present = [[data.draw(st.booleans()) for _ in range(n)] for _ in range(rounds)]
    flags = Flag.SNAPSHOT | Flag.SUSPEND
    contributions = [
        [
            Contribution(r, updates[r][k] * np.float32(p), int(p), flags if k == r == 0 else Flag.NONE)
            for k, p in enumerate(row)
        ]
        for r, row in enumerate(present)
    ]
    model = np.random.default_rng(n).standard_normal(LAYOUT.size).astype(np.float32)
    expected = model
    with np.errstate(over="ignore", invalid="ignore"):
        for row, ps in zip(contributions, present, strict=True):
            definition = ring if exchange == "ring" else allreduce
            expected = definition(expected, [own.values.copy() for own in row], ps)
        run = run_of(exchange, n, transport={"partition": partition})
        net = Net(exchange, run, model, random.Random(data.draw(st.integers(0, 10**6), "order")))
        net.play(contributions)
    for k, own in enumerate(net.models):
        assert np.array_equal(own, expected, equal_nan=True), k
        assert net.averagers[k].flags == (flags if rounds == 1 else Flag.NONE)


def test_an_overflow_does_not_reach_the_model_and_is_recorded():
    run, updates = run_of("ring", 3), [np.zeros(LAYOUT.size, np.float32) for _ in range(3)]
    for update in updates[:2]:
        update[[3, 70]] = 3e38
    net = Net("ring", run, np.ones(LAYOUT.size, np.float32), random.Random(1))
    net.play([[Contribution(0, update, 1, Flag.NONE) for update in updates]])
    assert all((model == 1).all() for model in net.models)
    found = [fields for event, fields in net.records if event == "rejected"]
    assert sorted(block for fields in found for block in fields["blocks"]) == [0, 1]
    assert {fields["reason"] for fields in found} == {"not finite"}


@pytest.mark.parametrize("exchange", ["ring", "allreduce"])
def test_a_model_that_overflows_is_no_warning(exchange):
    """It diverges, which is a valid result; numpy would warn in what the driver does not know as a task."""
    large = np.full(LAYOUT.size, 3e38, np.float32)
    net = Net(exchange, run_of(exchange, 2), large, random.Random(1))
    net.play([[Contribution(0, large * np.float32(k), 1, Flag.NONE) for k in (0, 1)]])
    assert all(np.isinf(model).all() for model in net.models)


@pytest.mark.parametrize("exchange", ["ring", "allreduce"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_run_follows_the_definition_and_screens_updates(exchange, workers, tmp_path):
    """The last of three workers diverges; the others go on with its update as zeros."""
    trainers, targets = {}, [1.0, 2.0, float("nan")][:workers]
    for k, target in enumerate(targets):
        trainers[Peer("worker", k)] = Quadratic(LAYOUT, target, steps_per_epoch=1)
    run = run_of(exchange, workers, train={"mode": "sync", "exchange": exchange, "epochs": 3, "local_steps": 2})
    with np.errstate(invalid="ignore"):
        played = play(tmp_path, run, trainers)
    model = np.zeros(LAYOUT.size, np.float32)
    for _ in range(2):
        updates = []
        for target in targets:
            x = model.copy()
            for _ in range(2):
                x += np.float32(0.5) * (np.float32(target) - x)
            updates.append(np.nan_to_num(x - model, nan=0.0))
        model = (ring if exchange == "ring" else allreduce)(model, updates, [1] * workers)
    assert np.array_equal(played.model, model)
    assert [line["round"] for line in played.lines("worker-0", "round")] == [0, 1]
    if workers == 3:
        assert [line["blocks"] for line in played.lines("worker-2", "rejected")] == [[0, 1, 2]] * 2
    assert played.lines("worker-0", "evaluation")[-1]["epoch"] == 3


@pytest.mark.parametrize("exchange", ["ring", "allreduce"])
def test_absent_workers_and_skipped_blocks_add_nothing(exchange, tmp_path):
    for name, communication in {"absent": {"participation": 0.0}, "skipped": {"skip_rate": 1.0}}.items():
        trainers = {Peer("worker", k): Quadratic(LAYOUT, k + 1) for k in range(3)}
        played = play(tmp_path / name, run_of(exchange, 3, communication=communication), trainers)
        assert not played.model.any()


def worker(exchange="ring", index=1):
    peer = Peer("worker", index)
    return CollectiveWorker(peer, run_of(exchange, 3).identified("toy"), Quadratic(LAYOUT, 1))


def tell(role, event):
    return list(role.handle(event))


INITIAL = InitialWeights(steps_per_epoch=4, statistics=False, values=np.zeros(LAYOUT.size, np.float32))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 1}, "of round 1"),
        ({"chunk": 1}, "it does not expect the PARTIAL of piece 0 of chunk 1"),
        ({"piece": 7}, "piece 7 of chunk 0"),
        (None, "it does not expect the CHUNK"),
        ({"values": np.zeros(3, np.float32)}, "its payload has 3 elements instead of 48"),
    ],
)
def test_a_wrong_message_of_the_worker_before_ends_the_run(change, reason):
    role = worker()
    tell(role, Received(Peer("worker", 0), INITIAL))
    fields = {"round": 0, "chunk": 0, "piece": 0, "flags": Flag.NONE, "values": np.zeros(48, np.float32)}
    message = NextModel(**fields) if change is None else PartialSum(**{**fields, "count": 1, **change})
    with pytest.raises(RunError, match=f"worker-1 cannot use what worker-0 sent in round 0: .*{reason}"):
        tell(role, Received(Peer("worker", 0), message))


def test_a_message_that_nobody_needs_is_recorded():
    role = worker()
    tell(role, Received(Peer("worker", 0), INITIAL))
    (record,) = tell(role, Malformed(Peer("worker", 2), "noise"))
    assert record.fields["reason"] == "noise"
    with pytest.raises(RunError, match="a worker gets no INIT from worker-0"):
        tell(role, Received(Peer("worker", 0), INITIAL))


def test_a_model_of_another_size_is_refused():
    wrong = replace(INITIAL, values=np.zeros(2, np.float32))
    with pytest.raises(RunError, match="its payload has 2 elements instead of 101"):
        tell(worker(), Received(Peer("worker", 0), wrong))
