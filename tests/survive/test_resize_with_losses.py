"""Runs that lose processes before and after their number of workers changes, in virtual time, and replays of them."""

import json

import pytest
from interrupted import records
from resized import replay_resized, resize
from survive.test_crashes_with_losses import valid
from survive.test_lost_async_workers import RULES
from survive.test_lost_validators import assert_evaluated
from survive.test_lost_workers import survivors

from hpcps.errors import RunError, SpecError
from hpcps.execution import role_driver
from hpcps.execution.simulation.failures import Failures
from hpcps.execution.sweep.batch import execute_point
from hpcps.execution.sweep.claims import directory_of
from hpcps.execution.sweep.resizing import as_requested, checked
from hpcps.execution.tracking import TrackingProcess
from hpcps.protocol.messages import Peer
from hpcps.records.files import Lines
from hpcps.roles.worker import Worker
from hpcps.spec.identity import run_id
from hpcps.spec.members import WorkerCount, members_of
from hpcps.spec.point import Point
from hpcps.spec.schema import Run
from hpcps.training.schedule import beginning
from hpcps.training.trainer import Trainer

BOTH, ALL = {"validators": True}, {"validators": True, "servers": True}
QUORUM = {
    "train": {"quorum": 0.5, "late": "next"},
    "simulation": {"step": {"kind": "uniform", "low": 0.02, "high": 0.3}},
}
ASYNCHRONOUS = {"train": {"mode": "async"}, **RULES}

MODES = {
    "one server": {},
    "two servers": {"servers": 2},
    "a validator": {"validators": 1, "servers": 2, "communication": {"participation": 0.7, "skip_rate": 0.3}},
    "validators too": {"validators": 2, "servers": 2, "survive": BOTH},
    "servers too": {"validators": 2, "servers": 2, "survive": ALL},
    "a quorum": {"validators": 1, **QUORUM},
    "a quorum of servers": {"servers": 2, **QUORUM},
    "a quorum, validators too": {"validators": 2, "survive": BOTH, **QUORUM},
    "asynchronous": ASYNCHRONOUS,
    "asynchronous, validators": {"validators": 2, "servers": 2, **ASYNCHRONOUS},
    "asynchronous, validators too": {"validators": 2, "servers": 2, "survive": BOTH, **ASYNCHRONOUS},
    "asynchronous, servers too": {"validators": 1, "servers": 2, "survive": ALL, **ASYNCHRONOUS},
}
LOSSES = {
    "before and after": [{"process": "worker-2", "at": [0.5]}],
    "absent where the epoch ends": [{"process": "worker-2", "at": [0.65], "repair": 3600}],
    "all in the first round": [{"process": "worker", "at": [0.05]}],
    "often": [{"process": "worker", "every": 0.8, "repair": 0.2}],
}
OF_VALIDATORS = [{"process": "validator-0", "at": [0.85], "repair": 0.4}, {"process": "validator-1", "at": [0.45]}]
OF_SERVERS = [{"process": "server-0", "at": [0.65], "noticed": 0.02}]
SIZES = {"up and down": [6, 3], "down and up": [3, 6]}


def run_of(mode, losses):
    """Return a run of a mode that loses these processes in each of its attempts."""
    tables = dict(MODES[mode])
    failures, survive = LOSSES[losses], tables.get("survive", {})
    failures = failures + (OF_VALIDATORS[: tables["validators"]] if survive.get("validators") else [])
    return survivors(*failures, *(OF_SERVERS if survive.get("servers") else []), **tables)


def present(directory):
    """Return the run with each of its numbers of workers, and the positions from which on it had it."""
    run, members = Run.model_validate(directory.spec["run"]), members_of(directory.spec)
    ends = [*(each.position for each in members[1:]), None]
    return [(run.resized(members[: n + 1]), members[n].position, end) for n, end in enumerate(ends)]


def assert_each_update_counts_once(directory):
    """A worker has taken as many steps of the epoch at each answer that entered a round as such answers count."""
    for run, first, end in present(directory):
        validators, steps = run.topology.validators, run.train.steps_per_round
        for worker in range(run.topology.workers):
            combiner = f"validator-{worker % validators}" if validators else "server-0"
            rounds = [line for line in valid(directory.path, combiner, "round") if first <= line["round"]]
            arrived = [line["round"] for line in rounds if end is None or line["round"] < end]
            arrived = [line["round"] for line in rounds if line["round"] in arrived and worker in line["arrived"]]
            taken = {line["round"]: line["step"] for line in valid(directory.path, f"worker-{worker}", "round")}
            before, *_ = beginning(run, "worker", worker)
            wrong = [r for n, r in enumerate(arrived) if r in taken and taken[r] != before + steps * (n + 1)]
            assert not wrong, (worker, before, arrived, taken)


def assert_valid_lines_are_those_of_the_run(directory):
    """Of a round, each process has one line at most, and none of a worker that was not there.

    In an asynchronous run each counts its own cycles, as if the number had always been the present one.
    """
    for file in directory.records if present(directory)[0][0].train.mode == "sync" else ():
        rounds = [line["round"] for line in valid(directory.path, file.stem, "round")]
        assert len(rounds) == len(set(rounds)), file.stem
    runs = present(directory)
    for worker in range(max(run.topology.workers for run, _, _ in runs)):
        for run, first, end in runs if runs[0][0].train.mode == "sync" else ():
            if worker >= run.topology.workers:  # it has left, or joins later
                lines = valid(directory.path, f"worker-{worker}", "round")
                assert not [line["round"] for line in lines if first <= line["round"] and (end or 1e9) > line["round"]]


@pytest.fixture
def in_order(monkeypatch):
    """Check that each step takes the batch of its epoch that its number says."""
    train, observe = Trainer.train, Trainer.observe

    def checked_step(take):
        def step(self, steps, **kwargs):
            done, passes, batches = self.position()
            assert done == passes * self.steps_per_epoch + batches
            assert steps > 0
            return take(self, steps, **kwargs)

        return step

    monkeypatch.setattr(Trainer, "train", checked_step(train))
    monkeypatch.setattr(Trainer, "observe", checked_step(observe))


@pytest.mark.sample(4, 40)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("losses", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_losses_in_each_attempt(mode, losses, sizes, tmp_path, in_order):
    run = run_of(mode, losses)
    directory = resize(run, tmp_path / "results", SIZES[sizes])
    assert [each["workers"] for each in directory.spec["members"]] == [4, *SIZES[sizes]]
    assert [each["epoch"] for each in directory.spec["members"]] == [0, 1, 2]
    assert directory.done
    lost = [line for file in directory.records for line in valid(directory.path, file.stem, "lost")]
    assert len(lost) > 2
    coordinator = "validator-0" if run.topology.validators else "worker-0"
    assert_evaluated(run, valid(directory.path, coordinator, "evaluation"))
    if run.train.mode == "sync" and not run.survive.validators:
        assert_each_update_counts_once(directory)
    assert_valid_lines_are_those_of_the_run(directory)
    result = replay_resized(directory, tmp_path / "replay")
    assert (str(result.difference), result.attempts, result.left) == ("None", 3, 0)
    assert result.models == run.topology.servers


KEYS = {
    "what is kept": {
        "survive": {"residual": "checkpoint"},
        "train": {"optimizer": {"lr": 0.05, "momentum": 0.9}},
        "communication": {"compression": {"kind": "topk", "k": 0.1, "memory": "nesterov"}},
        "checkpoint": {"rounds": 3},
    },
    "constant batches": {"survive": {"batch": "constant"}, "validators": 2},
    "a minimum": {"survive": {"min_workers": 3}},
    "an evaluator": {
        "validators": 1,
        "survive": BOTH,
        "topology": {"servers": 1, "validators": 1, "workers": 4, "evaluators": 1},
    },
    "classes": {
        "heterogeneity": {"classes": [{"name": "slow", "workers": [1, 2], "factor": 2.0, "batch_size": 4}]},
    },
    "several passes, a reference": {
        "validators": 2,
        "survive": BOTH,
        "train": {"passes_per_epoch": 2},
        "validation": {"rule": {"kind": "zeno"}},
    },
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", KEYS)
def test_other_keys(name, tmp_path):
    failures = [{"process": "worker", "every": 0.7, "repair": 0.2}]
    failures += (
        OF_VALIDATORS[: KEYS[name].get("validators", 0)] if "validators" in KEYS[name].get("survive", {}) else []
    )
    failures += [{"process": "evaluator-0", "at": [0.4]}] if name == "an evaluator" else []
    run = survivors(*failures, **KEYS[name])
    directory = resize(run, tmp_path / "results", [6, 3])
    assert [each["workers"] for each in directory.spec["members"]] == [4, 6, 3]
    if not run.survive.validators:
        assert_each_update_counts_once(directory)
    result = replay_resized(directory, tmp_path / "replay")
    assert (str(result.difference), result.attempts, result.left) == ("None", 3, 0)


def starts(directory, process):
    return [line for line in records(directory.path, process) if line["event"] == "start"]


def parts(directory, position):
    """Return the processes of which a checkpoint has parts."""
    manifest = directory.path / "checkpoints" / f"{position:09}" / "manifest.json"
    return set(json.loads(manifest.read_text())["parts"])


@pytest.mark.parametrize("workers", [3, 6])
def test_one_that_is_absent_where_the_epoch_ends_begins_the_next_one_like_all(workers, tmp_path):
    run = survivors({"process": "worker-2", "at": [0.9], "repair": 3600}, train={"epochs": 2})
    directory = resize(run, tmp_path, [workers])
    now, began, _ = present(directory)[1]
    start = starts(directory, "worker-2")[1]
    assert start["without_part"]
    before = [line["round"] for line in records(directory.path, "worker-2")[: start["continues"]] if "round" in line]
    assert max(before) == began - 2  # it was lost in the last round of the epoch, and its update did not count
    (first, *_) = [line for line in valid(directory.path, "worker-2", "round") if line["round"] >= began]
    assert first["step"] == beginning(now, "worker", 2)[0] + 2
    assert 2 in valid(directory.path, "server-0", "round")[began]["participants"]


@pytest.fixture
def lasting(monkeypatch):
    """Worker 0 does not fail."""
    concerned = Failures._concerned
    others = lambda self, failure: (peer for peer in concerned(self, failure) if peer != Peer("worker", 0))  # noqa: E731
    monkeypatch.setattr(Failures, "_concerned", others)


@pytest.mark.usefixtures("lasting")
def test_one_that_is_absent_where_the_epoch_ends_may_leave(tmp_path):
    """All workers but one are absent then."""
    run = survivors({"process": "worker", "at": [0.9], "repair": 3600}, train={"epochs": 2})
    directory = resize(run, tmp_path / "results", [2])
    for worker in (2, 3):
        *_, left = records(directory.path, f"worker-{worker}")
        assert left["event"] == "left"
        rounds = [line["round"] for line in valid(directory.path, f"worker-{worker}", "round")]
        assert rounds == list(range(left["round"] - 1))
    assert valid(directory.path, "server-0", "round")[-1]["participants"] == [0]
    result = replay_resized(directory, tmp_path / "replay")
    assert (str(result.difference), result.attempts, result.left) == ("None", 2, 0)


@pytest.mark.usefixtures("lasting")
def test_an_update_that_does_not_count_is_not_in_the_record_of_one_that_leaves(tmp_path):
    """The workers fail when they have sent their updates of round 3, and have written the lines of the round."""
    slow = {"simulation": {"local": {"latency": 0.05}, "remote": {"latency": 0.05}}, "train": {"epochs": 2}}
    whole = resize(survivors(**slow), tmp_path / "whole", [2])
    sent = next(line["time"] for line in valid(whole.path, "worker-3", "round") if line["round"] == 3)
    failure = {"process": "worker", "at": [sent + 0.01], "repair": 3600}
    directory = resize(survivors(failure, **slow), tmp_path / "results", [2])
    for worker in (2, 3):
        *_, written, left = records(directory.path, f"worker-{worker}")
        assert (written["event"], written["round"], left["event"], left["round"]) == ("round", 3, "left", 5)
        assert [line["round"] for line in valid(directory.path, f"worker-{worker}", "round")] == [0, 1, 2]
    result = replay_resized(directory, tmp_path / "replay")
    assert str(result.difference) == "None"


def test_one_that_joins_does_not_begin_with_the_residual_of_one_that_has_left(tmp_path):
    """All are lost in their first round; the run has parts of workers 2 and 3 from before these left."""
    keys = {**KEYS["what is kept"], "checkpoint": {"every": 1, "keep": 9}}
    directory = resize(survivors({"process": "worker", "at": [0.05]}, **keys), tmp_path, [2, 4])
    _, (_, _, left), (_, joined, _) = present(directory)
    found = {k: [s for s in starts(directory, f"worker-{k}") if s.get("incarnation")][-1] for k in range(1, 4)}
    assert all(len(start["members"]) == 3 for start in found.values())
    assert [start.get("residual_from") for start in found.values()] == [joined, None, None]
    assert left == joined


def test_lines_of_earlier_numbers_of_workers_stay_whatever_steps_they_count():
    """The second number has fewer steps in an epoch; it begins after line 3, and the third one after line 6."""
    members = [{}, {}]
    lines = [
        {"event": "start"},
        *({"event": "round", "step": step} for step in (8, 10)),
        {"event": "start", "members": members, "continues": 3},
        *({"event": "round", "step": step} for step in (9, 11)),
        {"event": "start", "members": [*members, {}], "continues": 6},
        {"event": "round", "step": 9},
    ]
    read = Lines(lines, 0, list(range(len(lines))))
    assert [read.until_step(step, 1) for step in (8, 9, 10, 12)] == [2, 2, 3, 3]
    later = Lines([*lines[:3], {"event": "round", "step": 12}, *lines[3:]], 0, list(range(len(lines) + 1)))
    assert later.until_step(99, 1) == 3, "line 3 is not valid, and line 4 has another number of workers"
    assert [read.until_step(step, 2) for step in (7, 9, 10, 12)] == [4, 5, 5, 6]
    assert [read.until_step(step, 3) for step in (7, 9, 12)] == [7, 8, 8]


def test_a_new_worker_that_is_lost_in_its_first_round_is_replaced_where_the_epoch_begins(tmp_path):
    run = survivors({"process": "worker", "at": [0.05]}, train={"epochs": 2})
    directory = resize(run, tmp_path, [6])
    now, began, _ = present(directory)[1]
    assert [start.get("incarnation") for start in starts(directory, "worker-5")] == [None, 1]
    first, *_ = valid(directory.path, "worker-5", "round")
    assert first["step"] == beginning(now, "worker", 5)[0] + 2
    # A step counts as one of an epoch of the present number: 400 samples in 7 shards have 7 batches of 8.
    assert first["epoch"] == pytest.approx(1 + 2 / 7)
    assert first["round"] > began


def test_those_that_stay_go_on_with_their_random_streams(tmp_path, monkeypatch):
    """Also if they are lost before their first update of the new number counts."""
    places = []
    go_to = Worker.go_to

    def noted(self, round, position, evaluated):
        places.append((str(self.peer), position))
        go_to(self, round, position, evaluated)

    monkeypatch.setattr(Worker, "go_to", noted)
    tables = {"communication": {"participation": 0.7, "skip_rate": 0.3}, "train": {"epochs": 2}}
    directory = resize(survivors({"process": "worker", "at": [0.05]}, **tables), tmp_path, [6])
    now, *_ = present(directory)[1]
    counted = places[-6:]
    assert [name for name, _ in counted] == [f"worker-{k}" for k in range(6)]
    for name, place in counted[:4]:
        assert place["data"] == beginning(now, "worker", int(name[-1]))
        assert any(any(positions) for stream, positions in place.items() if stream != "data")
    assert [place for _, place in counted[4:]] == [None, None]


def test_a_resized_run_that_crashes_with_losses_goes_on(tmp_path):
    """It resumes from the checkpoint at which it was resized, and from later ones."""
    run = survivors({"every": 1.0, "repair": 0.2}, validators=1, servers=2, checkpoint={"rounds": 2})
    directory = resize(run, tmp_path / "results", [6, 3], crashes=[430, 90, 260, 150, 260])
    assert len(starts(directory, "server-0")) > 5
    assert_each_update_counts_once(directory)
    assert_valid_lines_are_those_of_the_run(directory)
    result = replay_resized(directory, tmp_path / "replay")
    assert str(result.difference) == "None"


def test_an_older_checkpoint_of_another_number_is_not_used(tmp_path, monkeypatch, capsys):
    """Each worker may be lost, so only its position tells that it lacks none of the new number."""
    run = survivors(validators=1, checkpoint={"rounds": 2, "keep": 3})
    point = Point(0, run, run_id(run), "small")
    directory = directory_of(point, tmp_path)
    directory.path.mkdir(parents=True)
    directory.request_resize(6)
    monkeypatch.setattr(role_driver, "_ASK_EVERY", -1.0)
    with TrackingProcess() as tracking:
        assert not execute_point(point, tmp_path, [], lambda: False, tracking)
        point = as_requested(point, tmp_path, print)
        began, *older = directory.checkpoints.positions()
        assert (began, older) == (10, [8, 6])
        (directory.path / "checkpoints" / "000000010" / "server-0.npz").write_bytes(b"damaged")
        with pytest.raises(RunError, match="no usable checkpoint at or after 10, where the run was resized to 6"):
            execute_point(point, tmp_path, [], lambda: False, tracking)
    assert "is rejected" in capsys.readouterr().err


def test_too_few_workers_are_refused():
    few = {
        "survive.min_workers: a combiner has 2 workers": survivors(survive={"min_workers": 3}),
        "validation.rule": survivors(workers=6, validation={"rule": {"kind": "krum", "f": 1}}),
        r"simulation.failures\[0\].process: there is no worker-3": survivors({"process": "worker-3", "at": [1.0]}),
        r"heterogeneity.classes\[0\].workers": survivors(
            heterogeneity={"classes": [{"name": "slow", "workers": [3], "factor": 2.0}]}
        ),
    }
    for message, run in few.items():
        with pytest.raises(SpecError, match=message):
            checked(run, (*run.members, WorkerCount(0, 0, 2)))
