"""Runs that go on with another number of workers where an epoch ends."""

import random
from collections import Counter

import numpy as np
import pytest
from interrupted import Crash, model, records, small
from replay.recorded import asynchronous, quorum
from resized import replay_resized, resize
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.data.batches import BatchStream
from hpcps.errors import LaunchError, RunError, SpecError
from hpcps.execution import role_driver
from hpcps.execution.resized_parts import resized_part
from hpcps.execution.sweep.batch import execute_point
from hpcps.execution.sweep.claims import directory_of
from hpcps.execution.sweep.resizing import as_requested, checked
from hpcps.execution.tracking import TrackingProcess
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.collect import collect
from hpcps.records.files import Prefix
from hpcps.spec.identity import run_id
from hpcps.spec.load import load_experiment
from hpcps.spec.members import WorkerCount, described
from hpcps.spec.point import Point
from hpcps.training.schedule import steps_per_epoch

HERE = {"transport": {"kind": "inproc"}}


def synchronous(shape=(1, 1, 4), **tables):
    """Return a small synchronous run in one process; `tables` change it."""
    topology = dict(zip(("servers", "validators", "workers"), shape, strict=True))
    return small(**{"topology": topology, **HERE, "communication": {"skip_rate": 0.3}, **tables})


def counts(directory):
    """Return the numbers of workers, each with the epochs before it."""
    return [(each["workers"], each["epoch"]) for each in directory.spec["members"]]


def evaluated(directory, process="validator-0"):
    """Return the evaluated epochs, in the order of the record."""
    return [line["epoch"] for line in records(directory.path, process) if line["event"] == "evaluation"]


RUNS = {
    "synchronous": synchronous(),
    "two servers": synchronous((2, 0, 4)),
    "two validators": synchronous((2, 2, 4)),
    "uneven shards": synchronous(data={"split": "dirichlet", "alpha": 1.0}),
    "epochs within rounds": synchronous(train={"local_steps": 7, "epochs": 8}),
    "virtual time": synchronous(simulation={"kind": "modelled", "step": {"kind": "constant", "seconds": 0.1}}),
    "reference": synchronous(validation={"rule": {"kind": "zeno"}}),
    "history": synchronous(validation={"rule": {"kind": "foolsgold"}}),
    "evaluator": synchronous(topology={"servers": 1, "validators": 1, "workers": 4, "evaluators": 1}),
    "quorum": quorum((2, 1, 4), train={"quorum": 0.5}, **HERE),
    "quorum of servers": quorum((1, 0, 4), train={"quorum": 0.5}, **HERE),
    "asynchronous": asynchronous((2, 2, 4), epochs=6, **HERE),
    "asynchronous servers": asynchronous((1, 0, 4), epochs=6, validation={"rule": {"kind": "dc_asgd"}}, **HERE),
    "a buffer": asynchronous(
        (2, 0, 4), epochs=6, asynchronous={"buffer": 3}, validation={"rule": {"kind": "average"}}, **HERE
    ),
    "an adversary": synchronous((2, 2, 4), attack={"kind": "alie", "rate": 0.5}),
    "an asynchronous adversary": asynchronous((2, 2, 4), epochs=6, attack={"kind": "alie", "rate": 0.5}, **HERE),
    "classes": synchronous(
        heterogeneity={"classes": [{"name": "a", "workers": 1, "batch_size": 8}, {"name": "b", "workers": [2]}]}
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", RUNS)
def test_a_resized_run_is_replayed_to_the_same_bits(name, tmp_path):
    run = RUNS[name]
    directory = resize(run, tmp_path / "results", [6, 3])
    assert [workers for workers, _ in counts(directory)] == [4, 6, 3]
    assert directory.done
    assert directory.path.name == run_id(run)
    coordinator = "validator-0" if run.topology.validators else "worker-0"
    assert evaluated(directory, coordinator) == list(range(1, run.train.epochs + 1))
    result = replay_resized(directory, tmp_path / "replay")
    assert (str(result.difference), result.attempts, result.left) == ("None", 3, 0)
    assert result.models == run.topology.servers


def test_with_a_quorum_the_last_round_of_the_earlier_workers_waits_for_all(tmp_path):
    simulation = {"kind": "modelled", "step": {"kind": "constant", "seconds": 0.1}}
    slow = {"heterogeneity": {"slow": {"workers": [3], "factor": 4.0}}, "simulation": simulation}
    directory = resize(quorum((1, 1, 4), train={"quorum": 0.5}, **HERE, **slow), tmp_path / "results", [6])
    (_, began) = directory.spec["members"]
    lines = [line for line in records(directory.path, "validator-0") if line["event"] == "round"]
    # Answers to earlier models come in it, too, and are dropped.
    came = [{*line["arrived"], *(worker for worker, _ in line["dropped"])} for line in lines]
    assert came[began["position"] - 1] == {0, 1, 2, 3}
    assert len(came[0]) < 4
    assert str(replay_resized(directory, tmp_path / "replay").difference) == "None"


@pytest.mark.parametrize("shape", [(1, 1, 4), (2, 0, 4)])
def test_each_sample_is_in_the_epoch_of_one_worker(shape, tmp_path, monkeypatch):
    seen = Counter()
    take = BatchStream.__next__

    def counted(self):
        epoch = self._state.passes + (self._state.position == self.batches_per_pass)
        inputs, labels = take(self)
        if self.batches_per_pass and self in streams:
            seen.update((epoch, each.tobytes()) for each in inputs)
        return inputs, labels

    streams, create = [], BatchStream.__init__

    def created(self, *args, **kwargs):
        create(self, *args, **kwargs)
        if args[3].args[1] == "worker":
            streams.append(self)

    monkeypatch.setattr(BatchStream, "__next__", counted)
    monkeypatch.setattr(BatchStream, "__init__", created)
    run = synchronous(shape, train={"local_steps": 1, "epochs": 4}, communication={"skip_rate": 0.0})
    directory = resize(run, tmp_path, [6, 3])
    assert counts(directory) == [(4, 0), (6, 1), (3, 2)]
    of_epoch = Counter(epoch for epoch, _ in seen)
    for epoch, workers in ((0, 4), (1, 6), (2, 3), (3, 3)):
        batches = run.data.training_size // (workers + 1) // run.train.batch_size
        assert of_epoch[epoch] == workers * batches * run.train.batch_size, epoch
    assert set(seen.values()) == {1}  # digits has no two equal samples among these


def test_what_is_kept_of_a_worker_that_leaves_is_dropped():
    run = synchronous().resized((WorkerCount(0, 0, 4), WorkerCount(6, 1, 2)))
    arrays = {"model": np.zeros(2), **{f"estimates.{worker}": np.ones(2) for worker in range(4)}}
    facts = {
        "round": 6,
        "quorum": {},
        "trainer": {"steps": 18, "stream": {"passes": 0, "position": 18}, "optimizer": {}},
    }
    part = resized_part(run, Peer("validator", 0), CheckpointPart(State(arrays, facts), Prefix(3), 1.0))
    assert set(part.state.arrays) == {"model", "estimates.0", "estimates.1"}
    each = steps_per_epoch(run, "validator", 0)
    trainer = {"steps": each, "stream": {"passes": 1, "position": 0}, "optimizer": {}}
    assert part.state.facts == {"round": 6, "trainer": trainer}
    # One that joins later has the number of one that has left.
    again = run.resized((*run.members, WorkerCount(9, 2, 4)))
    part = resized_part(again, Peer("validator", 0), CheckpointPart(State(arrays, facts), Prefix(3), 1.0))
    assert set(part.state.arrays) == {"model", "estimates.0", "estimates.1"}


@pytest.mark.thorough
def test_a_crash_changes_nothing(tmp_path):
    run, chance = synchronous((2, 1, 4)), random.Random(5)
    whole = resize(run, tmp_path / "whole", [6, 3])
    crashed = resize(run, tmp_path / "crashed", [6, 3], [chance.randrange(80, 600) for _ in range(6)])
    assert [line["attempt"] for line in records(crashed.path, "server-0") if line["event"] == "start"][-1] > 4
    if counts(crashed) == counts(whole):  # a crash may delay a request by an epoch
        np.testing.assert_array_equal(model(crashed.path), model(whole.path))
    result = replay_resized(crashed, tmp_path / "replay")
    assert (str(result.difference), result.left) == ("None", 0)


def test_lines_after_the_checkpoint_at_which_a_worker_leaves_do_not_count(tmp_path, monkeypatch, capsys):
    run = synchronous(train={"local_steps": 1, "epochs": 3})
    # The second attempt, with six workers, is gone after its checkpoint at the end of an epoch.
    point, name = Point(0, run, run_id(run), "small"), run_id(run)
    directory = directory_of(point, tmp_path)
    directory.path.mkdir(parents=True)
    monkeypatch.setattr(role_driver, "_ASK_EVERY", -1.0)
    take = role_driver.RoleDriver.take

    def crash_in_epoch_3(self):
        if self.peer == Peer("worker", 5) and self.round == 6 + 4 + 2:
            raise Crash
        return take(self)

    with TrackingProcess() as tracking:
        directory.request_resize(6)
        assert not execute_point(point, tmp_path, [], lambda: False, tracking)
        with monkeypatch.context() as patch:
            patch.setattr(role_driver.RoleDriver, "take", crash_in_epoch_3)
            with pytest.raises(Crash):
                execute_point(as_requested(point, tmp_path, print), tmp_path, [], lambda: False, tracking)
        directory.request_resize(3)
        assert execute_point(as_requested(point, tmp_path, print), tmp_path, [], lambda: False, tracking)
    assert counts(directory) == [(4, 0), (6, 1), (3, 2)]
    assert records(directory.path, "worker-5")[-1]["event"] == "left"
    table = collect(tmp_path / "small").table
    rounds = table[table["event"] == "round"].groupby(["role", "index"])["round"]
    assert rounds.apply(lambda each: each.is_unique).all()
    assert rounds.max()["worker", 5] == rounds.max()["worker", 3] == 6 + 4 - 1
    assert rounds.size()["worker", 5] == 4
    assert rounds.size()["worker", 0] == 6 + 4 + 7
    assert (table["resized"]).all()
    assert directory.checksums.keys() >= {"records/worker-0.jsonl", "records/worker-5.jsonl"}
    assert main(["status", name, "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"{name}: it began with 4 workers, and has 6 after epoch 1, 3 after epoch 2" in shown
    result = replay_resized(directory, tmp_path / "replay")
    assert (str(result.difference), result.attempts, result.left) == ("None", 3, 0)


def test_steps_are_counted_as_if_the_number_had_always_been_this_one(tmp_path):
    run = synchronous(train={"local_steps": 1})
    directory = resize(run, tmp_path, [6])
    now = run.resized((WorkerCount(0, 0, 4), WorkerCount(6, 1, 6)))
    rounds = [line for line in records(directory.path, "worker-5") if line["event"] == "round"]
    each = steps_per_epoch(now, "worker", 5)
    assert (rounds[0]["step"], rounds[0]["epoch"]) == (each + 1, 1 + 1 / each)
    assert rounds[-1]["epoch"] == run.train.epochs
    assert directory.spec["run"]["topology"]["workers"] == 4


def test_without_the_checkpoint_at_which_it_was_resized_a_run_does_not_begin_again(tmp_path):
    run = synchronous()
    directory = resize(run, tmp_path, [6], crashes=[900])
    (directory.path / "DONE").unlink()
    point = as_requested(Point(0, run, run_id(run), "small"), tmp_path, print)
    with TrackingProcess() as tracking, pytest.raises(RunError, match="resized to 6 workers: --no-resume starts"):
        execute_point(point, tmp_path, [], lambda: False, tracking)


@pytest.mark.parametrize(
    ("run", "workers", "reason"),
    [
        (synchronous((0, 1, 0)), 2, "it has no workers"),
        (synchronous((0, 0, 4), train={"exchange": "ring"}), 6, "the workers keep the model"),
        (synchronous(validation={"audit": {"share": 0.5}}), 6, "validation.audit"),
        (synchronous(train={"local_steps": {"kind": "esync"}}), 6, "a policy of train.local_steps"),
        (synchronous(validation={"evaluate": "validator_model"}), 6, "validation.evaluate"),
        (
            asynchronous(
                (1, 0, 4), asynchronous={"buffer": 2}, validation={"rule": {"kind": "average"}, "weights": "samples"}
            ),
            6,
            "asynchronous.buffer",
        ),
        (synchronous(validation={"rule": {"kind": "krum", "f": 1}}), 2, "validation.rule"),
        (synchronous((1, 2, 4)), 1, "some would have none"),
        (synchronous(validation={"weights": [1.0, 1.0, 1.0, 1.0]}), 6, "validation.weights"),
        (
            synchronous(heterogeneity={"classes": [{"name": "a", "workers": 1}, {"name": "b", "workers": 3}]}),
            2,
            r"heterogeneity.classes\[1\].workers: the classes have 4 workers in all, and there are 2",
        ),
        (synchronous(data={"shards": 6}), 6, "data.shards"),
        (synchronous(), 60, "fewer than a batch"),
    ],
)
def test_what_cannot_be_resized_is_refused(run, workers, reason):
    with pytest.raises(SpecError, match=reason):
        checked(run, (*run.members, WorkerCount(0, 0, workers)))


def test_without_slots_a_run_goes_on_with_its_workers(tmp_path, monkeypatch):
    run, said = synchronous(), []
    point = Point(0, run, run_id(run), "small")
    directory = directory_of(point, tmp_path)
    directory.path.mkdir(parents=True)
    directory.request_resize(6)
    monkeypatch.setattr(role_driver, "_ASK_EVERY", -1.0)

    def refuse(resized):
        raise LaunchError(f"{resized.present.processes} processes, and the host file has 6 slots")

    with TrackingProcess() as tracking:
        assert not execute_point(point, tmp_path, [], lambda: False, tracking)
        point = as_requested(point, tmp_path, said.append, refuse)
        stays = "stays at 4 workers: 8 processes, and the host file has 6 slots"
        assert said == [f"hpcps: run {run_id(run)} (small) {stays}"]
        assert execute_point(point, tmp_path, [], lambda: False, tracking)
    assert "members" not in directory.spec


def test_the_command_checks_and_writes_a_request(tmp_path, capsys, monkeypatch):
    run = synchronous()
    point = Point(0, run, run_id(run), "small")
    directory, name = directory_of(point, tmp_path), run_id(run)

    def resize_to(workers):
        status = main(["resize", name, "--workers", str(workers), "--results", str(tmp_path)])
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    status, shown = resize_to(6)
    assert (status, directory.resize_requested) == (2, None)
    assert shown.startswith(f"hpcps: no experiment '{name}'")
    directory.create(point.spec)
    said = f"run {name} (small) has 4 workers"
    assert resize_to(4) == (0, f"{said}: nothing to do\n")
    assert resize_to(6) == (0, f"{said}, and is not executed now: `hpcps run` goes on with 6 where its epoch ends\n")
    assert directory.resize_requested == 6
    with directory.claim():
        assert resize_to(5) == (0, f"{said}, and goes on with 5 where its epoch ends\n")
    assert directory.resize_requested == 5
    assert resize_to(4) == (0, f"{said}: it keeps them\n")
    assert directory.resize_requested is None
    status, shown = resize_to(60)
    assert (status, directory.resize_requested) == (2, None)
    assert "fewer than a batch of 16" in shown
    directory.request_resize(6)
    monkeypatch.setattr(role_driver, "_ASK_EVERY", -1.0)
    with TrackingProcess() as tracking:
        assert not execute_point(point, tmp_path, [], lambda: False, tracking)
        here = "from its checkpoint after epoch 1 on"
        assert resize_to(3) == (0, f"{said}, and is not executed now: `hpcps run` goes on with 3 {here}\n")
        assert execute_point(as_requested(point, tmp_path, print), tmp_path, [], lambda: False, tracking)
    assert counts(directory) == [(4, 0), (3, 1)]
    assert "(small) goes on with 3 workers instead of 4 after epoch 1" in capsys.readouterr().out
    assert resize_to(6) == (2, f"hpcps: run {name} (small) is done: nothing is left for other workers\n")


@pytest.mark.usefixtures("starts_processes")
def test_a_run_that_starts_again_needs_the_slots_of_its_file(tmp_path, capsys):
    file, hosts = tmp_path / "small.toml", tmp_path / "hosts"
    file.write_text(small_experiment("small", {"transport.kind": "pslite"}))
    hosts.write_text("localhost slots=12\n")
    (point,) = load_experiment(file).points
    members = described([WorkerCount(0, 0, point.run.topology.workers), WorkerCount(6, 1, 20)])
    directory_of(point, tmp_path).create({**point.spec, "members": members})
    command = ["run", str(file), "--dry-run", "--results", str(tmp_path), "--hostfile", str(hosts)]
    assert main(command) != 0
    assert "20 workers, 1 validator, 1 server need 22 slots" in capsys.readouterr().err
    assert main([*command, "--no-resume"]) == 0
