"""The evaluator gets the latest model when it is free; nobody waits for it before the last one, and nothing grows."""

import json
import random
import tracemalloc
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import interrupted
import numpy as np
import pytest
from roles.test_chief_measures import CASES, LAYOUT, Evaluator, Play, Slow, spec
from toy_trainers import Endpoint, Stepped

from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.protocol.messages import Evaluate, Evaluated, Flag, NoMoreModels, Peer, Statistics
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import EVALUATOR, Roster
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.evaluation_job import Died, EvaluationJob, TrainerEvaluations
from hpcps.roles.evaluator import EvaluatorClient, EvaluatorRole
from hpcps.roles.events import Computed, Finish, InBackground, Record, SaveEvaluation, Send, SetDeadline, Start
from hpcps.spec.checks import contradictions
from hpcps.spec.schema import Run
from hpcps.training.evaluation import CancelledError, Evaluation

CHIEF = Peer("validator", 0)


def with_evaluator(run, count=1):
    return Run.model_validate(
        {**run.model_dump(mode="json"), "topology": {**run.topology.model_dump(), "evaluators": count}}
    )


def evaluated(folder, coordinator, *names):
    lines = read_lines(folder / f"records/{coordinator}.jsonl").lines
    return [[line[name] for name in names] for line in lines if line["event"] == "evaluation"]


MEASURED = ("epoch", "round", "step", "learning_rate", "accuracy", "loss", "samples")


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", [*CASES, "quorum"])
def test_it_measures_what_the_coordinator_measures(tmp_path, case):
    run = spec(**(CASES | {"quorum": {"train": {"quorum": 2}}})[case])
    own, other = Play(tmp_path / "own", run, size=2), Play(tmp_path / "other", with_evaluator(run), size=2)
    np.testing.assert_array_equal(own.to_the_end().model, other.to_the_end().model)
    measured = [evaluated(play.path, play.coordinator, *MEASURED) for play in (own, other)]
    assert measured[0] == measured[1]
    assert len(measured[0]) == 4
    assert not any(isinstance(effect, InBackground) for effect in other.did), "the coordinator evaluates nothing"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("mode", "batchnorm"), [("sync", "reestimated"), ("async", "validator")])
def test_a_network_with_batchnorm_has_the_same_numbers(tmp_path, mode, batchnorm):
    found = []
    for count in (0, 1):
        run = interrupted.small(
            topology={"workers": 2, "evaluators": count},
            model={"name": "cifar_resnet8_v1"},
            data={"name": "synthetic", "limit": 24, "test_limit": 10},
            train={"mode": mode, "epochs": 2, "local_steps": 1, "batch_size": 8},
            validation={"batchnorm": batchnorm, "rule": {"kind": "average" if mode == "sync" else "naive_async"}},
        )
        assert interrupted.play(run, tmp_path / str(count))
        found.append(evaluated(tmp_path / str(count), CHIEF, *MEASURED))
    assert found[0] == found[1]
    assert len(found[0]) == 2
    saved = json.loads((tmp_path / "1/evaluation.json").read_text())
    last = next(line for line in interrupted.records(tmp_path / "1", CHIEF)[::-1] if line["event"] == "evaluation")
    assert [last[name] for name in ("accuracy", "loss", "top5")] == [saved[n] for n in ("accuracy", "loss", "top5")]
    assert list(last["class_accuracy"].values()) == saved["by_class"]
    assert sum(map(sum, saved["confusion"])) == saved["samples"] == last["samples"]


@pytest.mark.parametrize("case", ["validator", "worker", "averaged", "asynchronous", "checkpoints"])
def test_training_goes_on_to_its_end_without_a_stopped_evaluator(tmp_path, case):
    """As if somebody had stopped its process: it gets the first model, and then the last one."""
    play = Play(tmp_path, with_evaluator(spec(**CASES[case])), size=2)
    play.go_on(without={EVALUATOR})
    left = [peer for peer, node in play.nodes.items() if not node.finished]
    assert left == [play.coordinator, EVALUATOR]
    assert play.nodes[play.coordinator].waiting_for == (EVALUATOR,)
    # One message, whatever was due since.
    assert len(play.endpoints[EVALUATOR].inner._boxes[EVALUATOR]) == 1
    play.to_the_end()
    assert [line["epoch"] for line in play.lines("evaluation")] == [1, 4]
    assert [line["epoch"] for line in play.lines("not_evaluated")] == [2, 3]


def test_a_slow_evaluator_reads_what_nobody_changes(tmp_path):
    """Payloads are read in place, at the end of each evaluation; the roles take turns at random."""

    class InPlace(Endpoint):
        """Gives the evaluator the memory of the coordinator."""

        def send(self, to, envelope):
            if isinstance(envelope.message, Evaluate):
                given.append(envelope)
                self.inner._boxes[to].append((envelope.sender, 0, 0, envelope.header, memoryview(envelope.payload)))
            else:
                super().send(to, envelope)

    given, chance = [], random.Random(1)
    run = with_evaluator(spec(train={"epochs": 40}))
    wanted = Play(tmp_path / "wanted", spec(train={"epochs": 40}), size=2)
    wanted.to_the_end()
    slow = Slow()
    late = Stepped(
        tmp_path / "late", run, wanted._trainer, lambda peer, inner: InPlace(inner), {EVALUATOR: {"background": slow}}
    )
    node = late.nodes[EVALUATOR]
    while any(not each.finished for each in late.nodes.values()):
        for each in list(late.nodes.values()):
            if not each.finished and (each is not node or chance.random() < 0.1):
                each.step()
        if slow._given is not None and chance.random() < 0.1:
            slow.wait()
    known = {line["epoch"]: (line["loss"], line["accuracy"]) for line in wanted.lines("evaluation")}
    lines = read_lines(late.path / f"records/{CHIEF}.jsonl").lines
    found = {line["epoch"]: (line["loss"], line["accuracy"]) for line in lines if line["event"] == "evaluation"}
    left_out = [line["epoch"] for line in lines if line["event"] == "not_evaluated"]
    assert 2 < len(found) < 40
    assert 40 in found
    assert found == {epoch: known[epoch] for epoch in found}
    assert sorted([*found, *left_out]) == [*range(1, 41)]
    # All models were in two pieces of memory.
    assert len({message.payload.ctypes.data for message in given}) == 2


def job(number, model, statistics=0):
    fields = ({"epoch": number, "round": number, "time": float(number)},)
    return EvaluationJob(number, (number,), fields, model, np.full(statistics, number, np.float32))


FOUND = {"finite": True, "accuracy": 0.5, "loss": 1.0, "samples": 2, "top5": 1.0, "class_accuracy": {"0": 0.5}}


def client():
    allocated = []

    def allocate(size):
        allocated.append(size)
        return np.empty(size, np.float32)

    return EvaluatorClient(CHIEF, allocate, ()), allocated


def answer(round, number=0, incarnation=0):
    return Evaluated(round=round, number=number, incarnation=incarnation, **FOUND)


def test_a_thousand_models_of_a_megabyte_take_the_memory_of_two():
    giving, allocated = client()
    effects = Counter()
    sent = []
    model = np.empty(250_000, np.float32)
    tracemalloc.start()
    for number in range(1, 1001):
        model[:] = number
        for effect in giving.submit(job(number, model)):
            effects[type(effect).__name__] += 1
            sent += [effect.message] if isinstance(effect, Send) else []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3e6, "the two models, and little else"
    assert allocated == [250_000, 250_000]
    assert effects == {"Send": 1, "Record": 998}
    assert sent[0].payload[0] == 1, "it is that of the evaluator, until it answers"
    recorded, second = giving.take(answer(1))
    assert (recorded.event, recorded.fields["epoch"]) == ("evaluation", 1)
    assert (second.message.round, second.message.payload[0]) == (1000, 1000)


def test_models_that_are_not_evaluated_survive_an_interruption():
    giving, _ = client()
    for number in (1, 2, 3):
        list(giving.submit(job(number, np.full(3, number, np.float32), statistics=2)))
    state = giving.state()
    facts = json.loads(json.dumps(state.facts))
    again, _ = client()
    again.restore(State({name: values.copy() for name, values in state.arrays.items()}, facts))
    (first,) = again.send()
    np.testing.assert_array_equal(first.message.payload, [1, 1, 1, 1, 1])
    assert list(again.send()) == []
    recorded, following = again.take(answer(1))
    assert recorded.fields["epoch"] == 1
    np.testing.assert_array_equal(following.message.payload, [3, 3, 3, 3, 3])
    assert giving.state().facts["jobs"][1]["epochs"] == (3,)


@pytest.mark.parametrize("bad", [answer(2), answer(1, 1), Statistics(round=1, values=np.zeros(2, np.float32))])
def test_an_answer_to_another_model_ends_the_run_with_its_name(bad):
    giving, _ = client()
    list(giving.submit(job(1, np.zeros(3, np.float32))))
    with pytest.raises(RunError, match=r"validator-0 waits for the evaluation .* evaluator-0 sent"):
        list(giving.take(bad))


def test_the_end_waits_for_the_evaluator_by_name():
    giving, _ = client()
    assert [type(effect) for effect in giving.finish()] == [Send, Finish]
    giving, _ = client()
    list(giving.submit(job(1, np.zeros(3, np.float32))))
    assert list(giving.finish()) == [SetDeadline((EVALUATOR,))]
    recorded, stop, end = giving.take(answer(1))
    assert isinstance(recorded, Record)
    assert isinstance(stop.message, NoMoreModels)
    assert stop.message.flags == Flag.NONE
    assert end == Finish()


def test_the_replacement_of_the_evaluator_gets_the_model_again():
    giving, _ = client()
    (sent,) = giving.submit(job(1, np.zeros(3, np.float32)))
    (lost,) = giving.note(Lost(EVALUATOR, "its connection has closed"))
    assert (lost.event, lost.fields["process"]) == ("lost", "evaluator-0")
    assert list(giving.submit(job(2, np.ones(3, np.float32)))) == []
    replaced, again = giving.note(Replaced(EVALUATOR, 1))
    assert replaced.event == "replaced"
    assert (again.message.round, again.message.number) == (1, sent.message.number)
    _, following = giving.take(answer(1))
    assert (following.message.round, following.message.number) == (2, 1)


def test_an_answer_that_was_for_a_predecessor_of_the_coordinator_is_no_answer():
    giving, _ = client()
    giving.incarnation = 2
    (sent,) = giving.submit(job(1, np.zeros(3, np.float32)))
    assert sent.message.incarnation == 2
    assert list(giving.take(answer(1))) == []
    (recorded,) = giving.take(answer(1, incarnation=2))
    assert recorded.event == "evaluation"


class Cancelled(Evaluator):
    """Evaluates until it is cancelled."""

    stopped = False

    def evaluate(self):
        if self.stopped:
            raise CancelledError
        return Evaluation(4, 1.0, 0.5, True, 1.0, ((1, 1, 0), (0, 1, 1)))

    def cancel(self):
        self.stopped = True


def evaluator(network=None):
    trainer = SimpleNamespace(
        device="cpu", layout=LAYOUT, statistics=np.zeros(2, np.float32), evaluator=network or Cancelled()
    )
    return started(TrainerEvaluations(trainer, reestimate=False))


def started(evaluations):
    role = EvaluatorRole(EVALUATOR, spec(topology={"evaluators": 1}).identified("run"), evaluations)
    (wait,) = role.handle(Start())
    assert wait == SetDeadline((CHIEF,), limited=False)
    return role


def model(size=LAYOUT.size, **which):
    return Received(CHIEF, Evaluate(**{"round": 7, "number": 0, **which}, values=np.zeros(size, np.float32)))


def stop(flags=Flag.NONE):
    return Received(CHIEF, NoMoreModels(flags=flags))


def test_it_answers_with_the_accuracy_of_each_class():
    role = evaluator()
    (begun,) = role.handle(model(LAYOUT.size + 2))
    saved, recorded, sent = role.handle(Computed("evaluate", begun.work()))
    assert isinstance(saved, SaveEvaluation)
    assert recorded == Record("evaluated")
    assert sent.message.round == 7
    assert sent.message.finite
    assert sent.message.fields == {
        **{"accuracy": 0.5, "loss": 1.0, "samples": 4},
        **{"top5": 1.0, "class_accuracy": {"0": 0.5, "1": 0.5}},
    }
    assert list(role.handle(stop())) == [Finish()]


def test_it_evaluates_for_a_replacement_of_the_coordinator_and_no_longer_for_its_predecessor():
    role = evaluator()
    (begun,) = role.handle(model(LAYOUT.size + 2))
    assert list(role.handle(model(LAYOUT.size + 2, incarnation=1, round=3))) == []
    (other,) = role.handle(Computed("evaluate", begun.work()))
    assert list(role.handle(model(LAYOUT.size + 2, incarnation=1, round=3))) == [], "it was sent again"
    *_, sent = role.handle(Computed("evaluate", other.work()))
    assert (sent.message.round, sent.message.incarnation) == (3, 1)
    assert list(role.handle(model(LAYOUT.size + 2, incarnation=1, round=3))) == []


def test_a_suspended_run_does_not_wait_for_an_evaluation():
    role = evaluator()
    (begun,) = role.handle(model(LAYOUT.size + 2))
    assert list(role.handle(stop(Flag.SUSPEND))) == []
    assert list(role.handle(Computed("evaluate", begun.work()))) == [Finish(suspended=True)]
    assert list(evaluator().handle(stop(Flag.SUSPEND))) == [Finish(suspended=True)]


class InAnother:
    """Evaluates in processes of the numbers 1, 2, …, each of which dies."""

    pid, device, parameters, statistics = 1, "cpu", LAYOUT.size, 0

    def evaluating(self, job):
        return job

    def restart(self):
        self.pid += 1


def test_a_process_that_ends_is_replaced_twice_for_a_model_which_is_then_given_up():
    role = started(InAnother())
    for first in (1, 3):
        (begun,) = role.handle(model(number=first))
        noted, again = role.handle(Computed("evaluate", (begun, Died(first, "was killed"))))
        facts = {"pid": first, "how": "was killed", "again": True, "next_pid": first + 1}
        assert noted == Record("evaluator_died", facts)
        assert again is begun
        noted, sent = role.handle(Computed("evaluate", (begun, Died(first + 1, "was killed"))))
        assert noted.fields == {"pid": first + 1, "how": "was killed", "again": False, "next_pid": first + 2}
        assert f"ended 2 times; the last one, {first + 1}, was killed" in sent.message.reason
    giving, _ = client()
    for number in (7, 8):
        list(giving.submit(job(number, np.zeros(3, np.float32))))
    omitted, following = giving.take(replace(sent.message, round=7, number=0))
    assert (omitted.event, omitted.fields["epoch"]) == ("not_evaluated", 7)
    assert omitted.fields["reason"] == sent.message.reason
    assert following.message.round == 8


@pytest.mark.parametrize(
    "event",
    [
        Received(CHIEF, Statistics(round=7, values=np.zeros(2, np.float32))),
        model(3),
        Malformed(CHIEF, "it is garbage"),
        Received(Peer("worker", 0), model().message),
    ],
)
def test_it_does_not_guess_what_a_bad_message_means(event):
    with pytest.raises(RunError, match="evaluator-0 cannot use"):
        list(evaluator().handle(event))


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", ["sync", "async", "ring"])
def test_a_run_that_stops_at_any_step_goes_on_evaluating(tmp_path, mode):
    tables = {"topology": {"workers": 2, "evaluators": 1}, "data": {"test_limit": 20}, "train": {"epochs": 4}}
    if mode == "async":
        tables["train"]["mode"] = "async"
        tables |= {"validation": {"rule": {"kind": "naive_async"}}}
    if mode == "ring":
        tables["topology"] |= {"servers": 0, "validators": 0}
        tables["train"]["exchange"] = "ring"
    run = interrupted.small(**tables)
    coordinator = Roster.of(run).coordinator
    assert interrupted.play(run, tmp_path / "whole")
    asked = iter([False] * 40 + [True] + [False] * 10**6)
    assert not interrupted.play(run, tmp_path / "stopped", stop=lambda: next(asked))
    ends = [interrupted.records(tmp_path / "stopped", peer)[-1] for peer in Roster.of(run).everyone()]
    assert {line["reason"] for line in ends} == {"suspended"}
    assert interrupted.play(run, tmp_path / "stopped")
    assert RunDirectory(tmp_path / "stopped").done
    wanted, found = (evaluated(tmp_path / name, coordinator, "epoch", "loss") for name in ("whole", "stopped"))
    assert [epoch for epoch, _ in found] == [1, 2, 3, 4]
    assert found == wanted or mode == "async"
    lines = interrupted.records(tmp_path / "stopped", EVALUATOR)
    begun = [(number, line) for number, line in enumerate(lines) if line["event"] == "start"]
    assert [line["attempt"] for _, line in begun] == [1, 2]
    assert begun[1][1]["continues"] == begun[1][0], "all its lines stay valid"


@pytest.mark.parametrize("epochs", [1, 2])
def test_runs_that_end_at_once_end(tmp_path, epochs):
    """With one step per epoch there is no step that never comes."""
    run = spec(topology={"servers": 1, "workers": 1, "evaluators": 1}, train={"epochs": epochs})
    play = Play(tmp_path, run)
    play.to_the_end()
    assert [line["epoch"] for line in play.lines("evaluation")][-1] == epochs


def test_the_single_process_baseline_evaluates_itself():
    run = spec(topology={"servers": 0, "validators": 1, "workers": 0, "evaluators": 1}, data={"shards": 2})
    (problem,) = contradictions(run)
    assert problem.path == ("topology", "evaluators")
    assert "evaluates them itself: use 0" in problem.message


def test_there_is_at_most_one():
    with pytest.raises(ValueError, match="less than or equal to 1"):
        spec(topology={"evaluators": 2})
