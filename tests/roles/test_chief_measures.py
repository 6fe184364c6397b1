"""The coordinator goes on while a model is measured, and what is recorded of it is as if it had not."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from toy_trainers import Adding, Endpoint, Stepped

from hpcps.execution.background import Finished
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer, Statistics
from hpcps.protocol.roster import Roster
from hpcps.records.files import read_lines
from hpcps.roles.events import Compute, InBackground, Record, Snapshot
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Evaluation

LAYOUT = Layout.of([("a", (6,)), ("b", (4,))])
ROUNDS = 3
"""In an epoch."""
VALIDATOR, WORKER = Peer("validator", 0), Peer("worker", 0)


class Evaluator:
    """Says what it was given: the model's first element as the loss, the first of the statistics as the accuracy."""

    def __init__(self):
        self.model, self.statistics = np.full(1, -1.0), np.full(1, -1.0)

    def copy_from(self, values):
        self.model = values

    def load_statistics(self, values):
        self.statistics = values

    def reestimate_statistics(self):
        self.statistics = np.full(1, 1000.0)

    def evaluate(self):
        finite = bool(np.isfinite(self.model).all())
        return Evaluation(1, float(self.model[0]), float(self.statistics[0]), finite, 1.0, ((1, 0),))

    def cancel(self):
        raise AssertionError("nobody stops this run")


class Watching(Adding):
    """Has an evaluator, and statistics that tell whose they are and after how many steps."""

    def __init__(self, index, step, size=0):
        super().__init__(LAYOUT, step, steps_per_epoch=ROUNDS)
        self.evaluator = Evaluator()
        self._index, self._size = index, size

    @property
    def statistics(self):
        return np.full(self._size, 10 * self.steps_done + self._index, np.float32)

    def evaluate(self):
        raise AssertionError("it trains on")


class Slow:
    """A background that is not done with anything before somebody waits for it."""

    def __init__(self, patient=True):
        self.waits, self.patient = 0, patient
        self._given = self._finished = None

    @property
    def busy(self):
        return self._given is not None or self._finished is not None

    def begin(self, task, round, work, cancel):
        assert not self.busy
        self._given = (task, round, work)

    def wait(self):
        assert self.patient, "it had to wait"
        self.waits += 1
        task, round, work = self._given
        self._given, self._finished = None, Finished(task, round, work(), None, 0.0, 1.0, 0.5)

    def take(self):
        finished, self._finished = self._finished, None
        return finished


class Withheld(Endpoint):
    """A transport that keeps some messages to itself until it is told to send them."""

    def __init__(self, inner, keep):
        super().__init__(inner)
        self._keep, self.kept = keep, []

    def send(self, to, message):
        if self._keep(message):
            self.kept.append((to, message))
        else:
            super().send(to, message)

    def release(self):
        self._keep = lambda message: False
        for to, message in self.kept:
            self.inner.send(to, message)


class Tampering(Endpoint):
    """A transport that sends something else in place of a worker's statistics."""

    def __init__(self, inner, peer, change):
        super().__init__(inner)
        self._peer, self._change = peer, change

    def send(self, to, envelope):
        message = envelope.message
        if not isinstance(message, Statistics) or message.round == 3:  # one evaluation has them all
            super().send(to, envelope)
        elif self._change == "garbage":
            self.inner._boxes[to].append((self._peer, 0, 0, b"garbage", None))
        else:
            super().send(to, replace(envelope, **self._change))


class Play(Stepped):
    """A run in this process; `did` holds the effects of its coordinator."""

    def __init__(self, folder, run, background=None, size=0, withhold=lambda peer, message: False, tamper=None):
        self.did, self.coordinator = [], Roster.of(run).coordinator

        def wrap(peer, endpoint):
            if tamper and peer == Peer("worker", 1):
                endpoint = Tampering(endpoint, peer, tamper)
            return Withheld(endpoint, lambda message: withhold(peer, message))

        more = {self.coordinator: {"background": background}}
        super().__init__(folder, run, lambda peer: Watching(peer.index, peer.index + 1, size), wrap, more)

    def role_of(self, peer):
        role = super().role_of(peer)
        if peer == self.coordinator:
            role.handle = self._watched(role.handle)
        return role

    def _watched(self, handle):
        def watched(event):
            for effect in handle(event):
                self.did.append(effect)
                yield effect

        return watched

    def lines(self, event, process=None):
        record = read_lines(self.path / f"records/{process or self.coordinator}.jsonl")
        return [line for line in record.lines if line["event"] == event]

    def measured(self):
        return [{**line, "time": None} for line in self.lines("evaluation")]


def spec(**tables):
    run = {
        "name": "measured",
        "topology": {"servers": 2, "validators": 1, "workers": 3},
        "model": {"name": "mlp"},
        "data": {"name": "synthetic"},
        "train": {"epochs": 4, "batch_size": 1},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return Run.model_validate(run)


NO_VALIDATOR = {"topology": {"servers": 1, "validators": 0, "workers": 3}}
ZENO = {"rule": {"kind": "zeno"}, "evaluate": "validator_model"}
ALONE = {"topology": {"workers": 1}, "train": {"mode": "async"}, "validation": {"rule": {"kind": "naive_async"}}}
CASES = {
    "validator": {},
    "worker": NO_VALIDATOR,
    "own network, inside of rounds": {"validation": ZENO, "train": {"local_steps": 2}},
    "rounds longer than epochs": {"train": {"local_steps": 7}},
    "reestimated": {"validation": {"batchnorm": "reestimated"}},
    "averaged": {"validation": {"batchnorm": "averaged"}},
    "averaged, worker": {**NO_VALIDATOR, "validation": {"batchnorm": "averaged"}},
    "checkpoints": {"checkpoint": {"every": 1}},
    "asynchronous": ALONE,
    "asynchronous, checkpoints": {**ALONE, "checkpoint": {"every": 2}},
    "asynchronous, worker": {**ALONE, "topology": {"servers": 1, "validators": 0, "workers": 1}},
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES)
def test_what_is_recorded_is_of_the_model_whenever_it_is_measured(tmp_path, case):
    run, slow = spec(**CASES[case]), Slow()
    at_once, late = Play(tmp_path / "at once", run, size=2), Play(tmp_path / "late", run, slow, size=2)
    np.testing.assert_array_equal(at_once.to_the_end().model, late.to_the_end().model)
    assert late.measured() == at_once.measured()
    assert [line["epoch"] for line in late.measured()] == [1, 2, 3, 4]
    assert len({line["loss"] for line in late.measured()}) == 4 - (case == "rounds longer than epochs") * 2
    assert slow.waits == sum(isinstance(effect, InBackground) for effect in late.did)
    times = [line["time"] for line in late.lines("evaluation")]
    assert times == sorted(times)


@pytest.mark.parametrize("changes", [{}, NO_VALIDATOR, {"validation": ZENO, "train": {"local_steps": 2}}])
def test_nobody_waits_for_a_measurement(tmp_path, changes):
    play = Play(tmp_path, spec(**changes, checkpoint={"every": 0}), Slow(patient=False))
    with pytest.raises(AssertionError, match="it had to wait"):
        play.go_on()
    for node in play.nodes.values():
        node.give_up("stopped")
    # That was the second one; what is between them has been done.
    rounds = 6 // (2 if "train" in changes else 1)
    assert len(play.lines("round", "worker-2")) == rounds
    steps = [effect for effect in play.did if isinstance(effect, (InBackground, Compute)) and effect.task != "pack"]
    assert steps[[isinstance(effect, InBackground) for effect in steps].index(True) + 1].task == "train"


def test_a_line_has_the_time_of_its_model(tmp_path):
    play = Play(tmp_path, spec(), Slow())
    play.to_the_end()
    lines = play.lines("round") + play.lines("evaluation")
    # Epoch 1 ended with round 2, and its line was written after round 5.
    evaluation = play.lines("evaluation")[0]
    before, after = (next(line for line in lines if line["round"] == number) for number in (2, 3))
    assert (evaluation["round"], evaluation["step"]) == (3, 3)
    assert before["time"] <= evaluation["time"] <= after["time"]
    text = (tmp_path / "records/validator-0.jsonl").read_text()
    assert text.index('"round": 5') < text.index('"event": "evaluation"') < text.index('"round": 6')


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_checkpoint_has_the_evaluation_before_it(tmp_path, mode):
    run = spec(checkpoint={"every": 1}, **(ALONE if mode == "async" else {}))
    play = Play(tmp_path, run, Slow())
    play.to_the_end()
    under_way = False
    parts = 0
    for effect in play.did:
        under_way |= isinstance(effect, InBackground)
        if isinstance(effect, Record) and effect.event == "evaluation":
            under_way = False
        if isinstance(effect, Snapshot):
            assert not under_way
            parts += 1
    assert parts >= 2
    assert any(isinstance(a, InBackground) and isinstance(b, Compute) for a, b in pairwise(play.did))


@pytest.mark.parametrize("changes", [{}, NO_VALIDATOR, {"checkpoint": {"every": 1}}])
def test_averaged_statistics_are_those_of_the_model_however_late_they_come(tmp_path, changes):
    late = Peer("worker", 1)

    def withhold(peer, message):
        return peer == late and isinstance(message.message, Statistics)

    run = spec(**changes, validation={"batchnorm": "averaged"})
    play = Play(tmp_path, run, Slow(), size=2, withhold=withhold)
    play.go_on()
    # It trained on, up to what must come after the measurement: the next one, or the checkpoint.
    assert len(play.lines("round")) == 2 * ROUNDS
    assert not any(isinstance(effect, InBackground) for effect in play.did)
    assert [effect.position for effect in play.did if isinstance(effect, Snapshot)] == [ROUNDS] * (
        "checkpoint" in changes
    )
    assert play.nodes[play.coordinator].waiting_for == (late,)
    play.endpoints[late].release()
    play.to_the_end()
    # Of workers 0, 1 and 2 after 3, 6, … steps.
    assert [line["accuracy"] for line in play.lines("evaluation")] == [31.0, 61.0, 91.0, 121.0]
    moments = [effect.position for effect in play.did if isinstance(effect, Snapshot)]
    assert moments == ([3, 6, 9] if "checkpoint" in changes else [])


def put_last(play, peer):
    """Let a role go on only when no other one can, and give it the models after all other messages."""
    node, others = play.nodes[peer], [node for other, node in play.nodes.items() if other != peer]
    step, receive, box = node.step, play.endpoints[peer].receive, play.endpoints[peer].inner._boxes[peer]

    def after_all_others():
        while any([other.step() for other in others if not other.finished]):  # noqa: C419 (a turn for each of them)
            pass
        return step()

    def models_last():
        packets = sorted(box, key=lambda packet: packet[0].role == "server")
        box.clear()
        box.extend(packets)
        return receive()

    node.step, play.endpoints[peer].receive = after_all_others, models_last


@pytest.mark.sample(6)
@pytest.mark.parametrize("order", ["in time", "early"])
@pytest.mark.parametrize("tamper", ["garbage", {"run": "other"}, {"sender": WORKER}])
@pytest.mark.parametrize("changes", [{}, NO_VALIDATOR, {"checkpoint": {"every": 1}}, {"train": {"epochs": 2}}])
def test_bad_statistics_are_left_out_and_nobody_waits_for_them(tmp_path, changes, tamper, order):
    """They may come before the model whose statistics they are; a worker is then ahead of the coordinator."""
    run = spec(**changes, validation={"batchnorm": "averaged"})
    play = Play(tmp_path, run, size=2, tamper=tamper)
    if order == "early":
        put_last(play, play.coordinator)
    play.to_the_end()
    evaluated = [line["accuracy"] for line in play.lines("evaluation")]
    # Of workers 0, 1 and 2 after 3, 6, … steps; worker 1's are left out after the first evaluation.
    assert evaluated == [31.0, 61.0, 91.0, 121.0][: run.train.epochs]
    assert len(play.lines("rejected")) == run.train.epochs - 1
