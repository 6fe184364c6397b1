"""Delays and slowed workers: drawn from the seed, waited for, and blocking nobody else."""

import numpy as np
import pytest
from pydantic import TypeAdapter
from toy_trainers import Quadratic, everyone, play, spec

from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.simulation.sharing import EventQueue
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.events import Compute, Computed, Drain, Finish, Idle, Pause, Record, Resumed, Start
from hpcps.seeds import generator
from hpcps.spec.heterogeneity import AnyDelay
from hpcps.transport.inproc import Exchange

ONE = Layout.of([("x", (1,))])


def draws(count=2000, **keys):
    delay = TypeAdapter(AnyDelay).validate_python(keys)
    source = generator(1, "worker", 0, "delay")
    return np.array([delay.draw(source) for _ in range(count)])


def test_distributions():
    assert not draws(kind="none").any()
    assert (draws(kind="constant", seconds=2.5) == 2.5).all()
    uniform = draws(kind="uniform", low=1.0, high=3.0)
    assert 1 <= uniform.min() < 1.05 < 2.95 < uniform.max() <= 3
    lognormal = draws(kind="lognormal", median=2.0, sigma=0.5)
    assert np.median(lognormal) == pytest.approx(2, rel=0.05)
    assert np.log(lognormal).std() == pytest.approx(0.5, rel=0.05)


def run_with(tmp_path, delay, mode="async", rule="naive_async", seed=1, **tables):
    tables = {"train": {"mode": mode, "epochs": 6}, "heterogeneity": {"delay": delay}, **tables}
    run = spec(rule, workers=3, **tables).model_copy(update={"seed": seed})
    trainers = {peer: Quadratic(ONE, 8 - 3 * peer.index) for peer in everyone(run) if peer.role != "server"}
    return play(tmp_path, run, trainers)


def log_of(played):
    return [(line["kind"], line["reader"], line.get("staleness")) for line in played.log]


def test_delays_decide_the_order_and_come_from_the_seed(tmp_path):
    delay = {"kind": "uniform", "low": 0.0, "high": 9.0}
    one, same, other, none = (
        log_of(run_with(tmp_path / name, delay if name != "none" else {"kind": "none"}, seed=seed))
        for name, seed in (("one", 1), ("same", 1), ("other", 2), ("none", 1))
    )
    assert one == same
    assert len({str(log) for log in (one, other, none)}) == 3


def test_a_delay_is_recorded_and_changes_no_synchronous_result(tmp_path):
    plain = run_with(tmp_path / "plain", {"kind": "none"}, mode="sync", rule="average")
    delayed = run_with(tmp_path / "delayed", {"kind": "constant", "seconds": 3.0}, mode="sync", rule="average")
    assert plain.model.tolist() == delayed.model.tolist()
    asynchronous = run_with(tmp_path / "async", {"kind": "constant", "seconds": 3.0})
    assert {line["delay"] for line in asynchronous.lines("worker-0", "round")} == {3.0}


class Script:
    """A role that asks for what it is told to, and remembers what happened."""

    peer, run_id, round, keeps_checkpoints = Peer("worker", 0), "run", 0, False

    def __init__(self, *effects):
        self.effects, self.events = list(effects), []

    def handle(self, event):
        self.events.append(event)
        yield self.effects.pop(0) if self.effects else Record("nothing")


def driven(tmp_path, role, **options):
    directory = RunDirectory(tmp_path)
    exchange = Exchange()
    endpoint = exchange.endpoint(role.peer)
    record = RecordWriter(tmp_path, "run", "worker", 0, "here")
    return RoleDriver(role, endpoint, record, directory, **options), endpoint


def test_a_pause_ends_on_the_clock_and_messages_are_handled_meanwhile(tmp_path):
    now = [0.0]
    role = Script(Pause(5.0), Record("heard"), Finish())
    node, endpoint = driven(tmp_path, role, clock=lambda: now[0])
    assert node.step()
    assert node.resumes == 5.0
    assert not node.step()
    endpoint._boxes[role.peer].append((Peer("server", 0), 0, 0, b"garbage", None))
    assert node.step()
    now[0] = 4.9
    assert not node.step()
    now[0] = 5.0
    assert node.step()
    assert isinstance(role.events[0], Start)
    assert isinstance(role.events[2], Resumed)
    assert node.finished


def test_a_slowed_worker_takes_longer_to_train_but_not_to_do_anything_else(tmp_path):
    now = [0.0]

    def work():
        now[0] += 0.5

    role = Script(Compute("train", work, slowdown=11.0), Compute("pack", work), Finish())
    node, _ = driven(tmp_path, role, clock=lambda: now[0])
    node.step()
    assert node.resumes == 0.5 + 10 * 0.5
    assert not node.step()
    now[0] = node.resumes
    assert node.step()
    assert isinstance(role.events[1], Computed)
    assert node.resumes is None, "packing is not slowed"
    assert node.step()
    assert node.finished


def test_drain_says_when_nothing_waits(tmp_path):
    role = Script(Drain())
    node, endpoint = driven(tmp_path, role)
    for _ in range(2):
        endpoint._boxes[role.peer].append((Peer("server", 0), 0, 0, b"garbage", None))
    for _ in range(4):
        node.step()
    assert [type(event).__name__ for event in role.events] == ["Start", "Malformed", "Malformed", "Idle"]
    assert isinstance(role.events[-1], Idle)
    assert not node.step()


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("validators", [1, 0])
def test_a_slowed_worker_keeps_the_record_of_its_first_step(tmp_path, validators, mode):
    clock = EventQueue()

    class Timed(Quadratic):
        def step(self):
            clock.advance(clock() + 1.0)
            super().step()

    run = spec(
        "naive_async" if mode == "async" else "average", workers=3, validators=validators,
        train={"mode": mode, "epochs": 60, "local_steps": 2, "first_step": "overwritten"},
        heterogeneity={"slow": {"workers": [1, 2], "factor": 3.0}},
    )  # fmt: skip
    trainers = {peer: Timed(ONE, 8 - 3 * peer.index) for peer in everyone(run) if peer.role != "server"}
    played = play(tmp_path, run, trainers, clock=clock)
    for worker in range(3):
        rounds = played.lines(f"worker-{worker}", "round")
        assert len(rounds) > 2
        # A cycle ends at a multiple of the local steps, and the first one has the first step.
        assert [line["samples"] for line in rounds] == [2] * len(rounds)
        assert [line["step"] for line in rounds] == [2 * (1 + number) for number in range(len(rounds))]
