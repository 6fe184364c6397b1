"""Workers and server 0 of a run with a policy, between which messages take any time; bad ones among them."""

import math
from collections import deque

import numpy as np
import pytest
from fast import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcps.numerics.layout import Layout
from hpcps.policies import DyLU, ESync
from hpcps.protocol.messages import Peer, StepsQuery
from hpcps.registry import active
from hpcps.roles.events import Compute, Drain, Record, Send, SetDeadline
from hpcps.roles.queries import QueriedSteps, QueryAnswers
from hpcps.roles.update.attacker import Attacker
from hpcps.spec.checks import contradictions
from hpcps.spec.schema import Run

SERVER = Peer("server", 0)


def run_of(policy, workers):
    return Run.model_validate(
        {
            "name": "toy",
            "topology": {"servers": 1, "validators": 0, "workers": workers},
            "model": {"name": "mlp"},
            "data": {"name": "digits"},
            "train": {"epochs": 2, "local_steps": policy.model_dump()},
        }
    )


class Worker:
    """Drives `QueriedSteps`: computes what it yields, at once, and holds its messages."""

    def __init__(self, index, policy, out):
        self.peer = Peer("worker", index)
        self.out = out
        self.steps, self.done, self.computing, self.draining = [], 0, 0, False
        self.queried = QueriedSteps(self.peer, policy, lambda n: Compute("train", lambda: None, steps=n), self.end)

    def end(self):
        self.done += 1
        self.steps.append(self.queried.steps)
        return iter(())

    def carry_out(self, effects):
        for effect in effects:
            if isinstance(effect, Send):
                assert effect.to == SERVER
                assert isinstance(
                    effect.message, StepsQuery
                )  # it has a duration at most: no moment of a worker's clock
                self.out.append(effect.message)
            elif isinstance(effect, Compute):
                self.computing = effect.steps
            elif isinstance(effect, Drain):
                self.draining = True
            else:
                assert effect == SetDeadline((SERVER,))


class World:
    """Workers and the step counter, with one queue of messages in each direction."""

    def __init__(self, policy, workers):
        self.queries = QueryAnswers(run_of(policy, workers), policy)
        self.to_server = [deque() for _ in range(workers)]
        self.to_worker = [deque() for _ in range(workers)]
        self.workers = [Worker(index, policy, self.to_server[index]) for index in range(workers)]
        self.now, self.round, self.records = 0.0, 0, []

    def possible(self):
        found = []
        for index, worker in enumerate(self.workers):
            found += [("deliver", index)] * bool(self.to_server[index])
            found += [("compute", index)] * bool(worker.computing)
            # Also while a step is slowed down on purpose; messages come before the end of a drain.
            found += [("take", index)] * bool(self.to_worker[index])
            if worker.draining and not worker.computing:
                found.append(("idle", index))
        return found

    def do(self, what, index, seconds):
        worker = self.workers[index]
        self.now += seconds / 10
        if what == "deliver":
            message = self.to_server[index].popleft()
            for effect in self.queries.query(worker.peer, message, self.round, self.now):
                if isinstance(effect, Send):
                    self.to_worker[effect.to.index].append(effect.message)
                else:
                    self.records.append(effect)
        elif what == "compute":
            steps, worker.computing = worker.computing, 0
            worker.carry_out(worker.queried.stepped(steps, seconds * steps))
        elif what == "take":
            worker.carry_out(worker.queried.take(self.to_worker[index].popleft()))
        elif not self.to_worker[index]:
            worker.draining = False
            worker.carry_out(worker.queried.go_on())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "policy",
    [ESync(most=7), ESync(most=7, blocking=False), ESync(most=1, blocking=False), DyLU(most=5)],
    ids=["esync", "not blocking", "one", "dylu"],
)
@settings(derandomize=True, deadline=None, max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_round_ends_whatever_the_times_of_messages_and_steps(policy, data):
    world = World(policy, 3)
    choose = data.draw(st.randoms(use_true_random=False))
    total = 0
    for round in range(4):
        world.round = round
        waiting = list(range(3))
        events = 0
        while any(worker.done == round for worker in world.workers):
            choices = world.possible() + [("begin", index) for index in waiting]
            what, index = choose.choice(choices)
            if what == "begin":
                waiting.remove(index)
                world.workers[index].carry_out(world.workers[index].queried.begin(round))
            else:
                world.do(what, index, choose.choice((0.0, 0.01, 0.1, 1.0)))
            events += 1
            assert events < 1000, "a round without end"
        steps = [worker.steps[-1] for worker in world.workers]
        assert all(1 <= each <= policy.most for each in steps)
        total += sum(steps)
        late = [message for queue in world.to_server for message in queue]
        if policy.waits:
            assert not late
        for index in range(3):  # those that are late come before the next round, whose model comes later still
            while world.to_server[index]:
                world.do("deliver", index, 0.1)
            assert world.workers[index].computing == 0
        assert world.queries.progress(1) == total / 3
    assert not [record for record in world.records if record.event == "rejected"]


BAD = [{"k": -1}, {"k": 8}, {"k": 1, "c": -0.1}, {"k": 1, "c": math.inf}]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_a_bad_query_is_recorded_and_its_sender_sends_its_update(fields):
    world = World(ESync(most=7), 2)
    query = StepsQuery(round=0, **fields)
    rejected, answer, *_ = world.queries.query(Peer("worker", 1), query, 0, 1.0)
    assert isinstance(rejected, Record)
    assert rejected.event == "rejected"
    assert (answer.to, answer.message.steps) == (Peer("worker", 1), 0)
    assert world.queries.progress(1) == 0


def test_a_query_of_a_later_round_begins_no_round():
    world = World(ESync(most=7), 2)
    for worker, round in ((0, 0), (1, 2**60)):
        query = StepsQuery(round=round, k=0)
        found = list(world.queries.query(Peer("worker", worker), query, 0, 1.0))
    assert found[0].event == "rejected"
    assert world.queries.takes_steps(Peer("worker", 0))


def test_a_liar_reports_its_durations_times_a_factor():
    out = []
    queried = QueriedSteps(
        Peer("worker", 0), ESync(), lambda n: Compute("train", lambda: None), lambda: iter(()), lambda: 10.0
    )
    for effects in (queried.begin(0), queried.stepped(1, 0.5)):
        out += [effect.message for effect in effects if isinstance(effect, Send)]
    assert [message.c for message in out] == [None, 5.0]
    assert queried.fields()["step_seconds"] == 0.5, "the record states what was measured"


@pytest.mark.parametrize(("kind", "reported"), [("slow_clock", 4.0), ("fast_clock", 0.25)])
def test_an_attacker_reports_in_the_rounds_of_its_schedule(kind, reported):
    attack = active().of("attacks")[kind](factor=4.0, rate=0.5, every=2)
    attackers = [
        Attacker(
            Peer("worker", worker), attack, 4, 1, 10, Layout.of_sizes((3,), 3), *map(np.random.default_rng, (1, 2))
        )
        for worker in range(4)
    ]
    assert sorted(each.duration_factor(0, 0) for each in attackers) == sorted([1.0, 1.0, reported, reported])
    assert [each.duration_factor(1, 0) for each in attackers] == [1.0] * 4


def test_a_clock_attack_needs_a_policy():
    run = run_of(ESync(), 4).model_copy(update={"attack": active().of("attacks")["slow_clock"]()})
    alone = run.model_copy(update={"train": run.train.model_copy(update={"local_steps": 2})})
    assert not [each for each in contradictions(run) if "only a policy of local steps" in each.message]
    assert [each for each in contradictions(alone) if "slow_clock reports wrong durations, but only" in each.message]
