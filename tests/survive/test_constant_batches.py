"""With survive.batch = "constant" the others take the samples of absent workers: a round has as many as before."""

import json

import numpy as np
import pytest
from executed import lines, run_here
from hypothesis import given, settings
from hypothesis import strategies as st
from small_experiment import small_experiment
from survive.test_lost_workers import LAST, STEP, played, survivors

from hpcps.cli.main import main
from hpcps.protocol.messages import Peer
from hpcps.roles.sync import worker as worker_module
from hpcps.roles.sync.shared_batches import samples_of
from hpcps.spec.checks import contradictions
from hpcps.spec.identity import run_id
from hpcps.spec.problems import dotted

BATCH, STEPS, SHARD = 8, 2, 80
LOSS = {"process": "worker-2", "at": [1.05]}
UNEVEN = {"classes": [{"name": "large", "workers": [1], "batch_size": 20}]}


def sharing(*failures, batch="constant", **tables):
    """Return a run whose workers take two steps of eight samples in a round of 0.2 s."""
    tables["survive"] = {"batch": batch, **tables.get("survive", {})}
    return survivors(*failures, **tables)


def counted(run, folder):
    """Return the samples of the updates of each round, whole rounds that lost a worker, and those without any."""
    workers, samples = range(run.topology.workers), {}
    for worker in workers:
        for line in lines(folder, f"worker-{worker}", "round"):
            samples[worker, line["round"]] = line["samples"]
    combiners = [f"validator-{v}" for v in range(run.topology.validators)] or ["server-0"]
    rounds = {}
    for combiner in combiners:
        for line in lines(folder, combiner, "round"):
            rounds.setdefault(line["round"], {}).update(
                {k: samples.get((k, line["round"]), 0) for k in line["arrived"]}
            )
    lost = {line["round"] for combiner in combiners for line in lines(folder, combiner, "lost")}
    return rounds, lost


def test_three_take_the_samples_of_four(tmp_path):
    """Worker 2 is lost in round 5, and its replacement gets the model of round 7: 64 samples are 22, 22 and 20."""
    run = sharing(LOSS)
    run_here(run, tmp_path)
    rounds, _ = counted(run, tmp_path)
    own = BATCH * STEPS
    assert rounds[4] == dict.fromkeys(range(4), own)
    assert rounds[5] == {0: own, 1: own, 3: own}  # the round in which it is lost
    assert rounds[6] == {0: 22, 1: 22, 3: 20}
    assert all(rounds[number] == dict.fromkeys(range(4), own) for number in range(7, LAST))


def test_without_the_key_each_takes_its_own(tmp_path):
    run = sharing(LOSS, batch="own")
    run_here(run, tmp_path)
    assert counted(run, tmp_path)[0][6] == {0: 16, 1: 16, 3: 16}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("validators", "servers"), [(0, 1), (0, 3), (1, 1), (2, 2)])
def test_without_a_loss_the_model_is_that_of_a_run_without_the_key(validators, servers, tmp_path):
    models = [
        played(sharing(batch=batch, validators=validators, servers=servers), tmp_path / batch)[0].tobytes()
        for batch in ("own", "constant")
    ]
    assert models[0] == models[1]


def test_a_replacement_goes_on_with_the_sample_after_those_that_entered(tmp_path, monkeypatch):
    """Positions count samples: it begins where its predecessor was after batches of several sizes."""
    failures = [{"process": "worker-1", "at": [0.5], "repair": 0.5}, {"process": "worker-2", "at": [1.45]}]
    positions = []
    take_place = worker_module.SyncWorker.take_place

    def noted(self, part):
        positions.append((self.peer, part.position["data"]))
        take_place(self, part)

    monkeypatch.setattr(worker_module.SyncWorker, "take_place", noted)
    run = sharing(*failures)
    run_here(run, tmp_path)
    steps, passes, samples = dict(positions)[Peer("worker", 2)]
    taken = [line["samples"] for line in lines(tmp_path, "worker-2", "round") if line["step"] <= steps]
    assert {16, 22} == {*taken}
    ended = place = 0
    for size in (each // STEPS for each in taken for _ in range(STEPS)):
        if place + size > SHARD:  # a pass leaves out what is not enough for a batch
            ended, place = ended + 1, 0
        place += size
    assert (passes, samples) == (ended, place)


def test_a_step_of_more_samples_takes_longer_in_virtual_time(tmp_path):
    run_here(sharing(LOSS), tmp_path)
    times = {line["round"]: line["time"] for line in lines(tmp_path, "server-0", "round")}
    assert times[4] - times[3] == pytest.approx(STEPS * STEP)
    assert times[6] - times[5] == pytest.approx(STEPS * STEP * 11 / 8)


@settings(deadline=None)
@given(st.data())
def test_the_samples_of_all_are_divided_among_those_that_are_there(data):
    """Whoever serves whom, each worker finds its part by itself; parts of equal workers differ by at most one."""
    workers = data.draw(st.integers(1, 9))
    validators = data.draw(st.integers(0, min(3, workers)))
    uneven = data.draw(st.booleans())
    run = sharing(workers=workers, validators=validators, heterogeneity=UNEVEN if uneven and workers > 1 else {})
    there = data.draw(st.sets(st.integers(0, workers - 1), min_size=1))
    living = data.draw(st.sets(st.integers(0, validators - 1), min_size=1)) if validators else None
    parts = {k: samples_of(run, Peer("worker", k), there, living) for k in there}
    others = sorted(living or ())
    served = {
        k: (k % validators if k % validators in living else others[k // validators % len(others)]) if validators else 0
        for k in range(workers)
    }
    for group in {*served.values()}:
        members = [k for k in range(workers) if served[k] == group]
        if {*members} & there:
            assert sum(parts[k] for k in members if k in there) == sum(run.batch_size("worker", k) for k in members)
    more = [parts[k] - run.batch_size("worker", k) for k in there]
    assert min(more) >= 0
    if validators < 2:
        assert max(more) - min(more) <= 1


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"train": {"mode": "async"}, "validation": {"rule": {"kind": "naive_async"}}}, "in an asynchronous run there"),
        ({"workers": 6, "train": {"quorum": 0.5}}, "with a quorum late workers are in no round either"),
        ({"validation": {"rule": {"kind": "median"}}}, "median is no mean"),
        (
            {"validation": {"weights": "steps"}, "heterogeneity": UNEVEN},
            "combiners do not count the samples that a worker takes for others",
        ),
        ({"survive": {"workers": False}}, "has an effect only with workers = true"),
    ],
)
def test_what_makes_no_sense_is_refused(tables, expected):
    problems = [f"{dotted(each.path)}: {each.message}" for each in contradictions(sharing(**tables))]
    assert any(each.startswith(f"survive.batch: {expected}") for each in problems), problems


@pytest.mark.parametrize("rule", ["average", "mean"])
@pytest.mark.parametrize("weights", ["equal", [1.0, 2.0, 3.0, 4.0]], ids=str)
def test_means_are_not_refused(rule, weights):
    assert contradictions(sharing(validation={"rule": {"kind": rule}, "weights": weights})) == []


def test_it_belongs_to_the_id_and_check_says_it(tmp_path, capsys):
    assert run_id(sharing()) != run_id(sharing(batch="own")) == run_id(survivors())
    file = tmp_path / "file.toml"
    keys = {"transport.kind": "pslite", "survive.workers": True, "survive.batch": "constant"}
    file.write_text(small_experiment("file", keys))
    assert main(["check", str(file)]) == 0
    assert "the others take its samples meanwhile" in capsys.readouterr().out


def test_the_model_message_of_a_run_without_the_key_is_as_before(tmp_path):
    """The bytes in the records of all processes are the same, so that earlier records are replayed."""
    sent = []
    for batch in ("own", "constant"):
        run_here(sharing(batch=batch), tmp_path / batch)
        sent.append(sum(json.loads(line).get("bytes_sent", 0) for line in records(tmp_path / batch)))
    assert sent[0] < sent[1]
    assert np.isfinite(sent).all()


def records(folder):
    """Return all lines of server 0."""
    return (folder / "records" / "server-0.jsonl").read_text().splitlines()
