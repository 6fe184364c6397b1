"""Asynchronous runs that lose workers: others go on, replacements take part, and no step is applied twice."""

import pytest
from executed import lines, run_here
from interrupted import play, play_through
from survive.test_crashes_with_losses import of_checkpoint, valid
from survive.test_lost_workers import STEP, drawn_costs, drawn_failures, survivors

from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions
from hpcps.spec.problems import dotted

RULES = {"validation": {"rule": {"kind": "naive_async"}}}


def asynchronous(*failures, servers=1, validators=0, **tables):
    """Return an asynchronous run whose processes fail as these tables say."""
    train = {"mode": "async", **tables.pop("train", {})}
    return survivors(*failures, servers=servers, validators=validators, train=train, **{**RULES, **tables})


def executed(folder, worker):
    """Return the steps that a worker had taken at each of its requests that the servers have executed, in order.

    A process numbers its requests from 1, a replacement from the one that its first model answers; every cycle has one.
    """
    combiners = [valid(folder, name, "replaced") for name in decisions(folder)]
    first = [line["first"] for found in combiners for line in found if line["process"] == worker]
    admitted = sorted(first)
    steps, request = {}, 0
    for line in lines(folder, worker):
        if line["event"] == "start":
            request = admitted.pop(0) if line.get("incarnation") and admitted else request
        elif line["event"] == "round":
            request += 1
            steps[request] = line["step"]
    read = [line["request"] for line in lines(folder, "server-0", "applied") if line["reader"] == worker]
    return [steps[number] for number in read if number in steps and number not in first]


def decisions(folder):
    """Return the names of the combiners."""
    names = sorted(path.stem for path in (folder / "records").glob("validator-*.jsonl"))
    return names or ["server-0"]


TOPOLOGIES = pytest.mark.parametrize(("validators", "servers"), [(0, 1), (1, 1), (2, 2)])


@pytest.mark.sample(1)
@TOPOLOGIES
def test_the_run_goes_on_and_the_replacement_takes_part(validators, servers, tmp_path):
    run = asynchronous({"process": "worker-2", "at": [1.05]}, validators=validators, servers=servers)
    run_here(run, tmp_path)
    decider = "server-0" if not validators else f"validator-{2 % validators}"
    (lost,), (replaced,) = lines(tmp_path, decider, "lost"), lines(tmp_path, decider, "replaced")
    assert (lost["process"], replaced["process"]) == ("worker-2", "worker-2")
    assert "counted" not in lost
    starts = [line.get("incarnation") for line in lines(tmp_path, "worker-2") if line["event"] == "start"]
    assert starts == [None, 1]
    requests = [line["request"] for line in lines(tmp_path, "server-0", "applied") if line["reader"] == "worker-2"]
    assert requests == [*range(1, len(requests) + 1)]
    assert 1 < replaced["first"] < len(requests), "both send updates"
    steps = executed(tmp_path, "worker-2")
    assert steps == [*range(2, 2 * len(steps) + 1, 2)]
    assert RunDirectory(tmp_path).done


@pytest.mark.sample(1)
@TOPOLOGIES
def test_without_a_loss_the_model_is_that_of_a_run_without_the_key(validators, servers, tmp_path):
    names = [f"server-{s}" for s in range(servers)]
    for survives in (True, False):
        run = asynchronous(validators=validators, servers=servers, survive={"workers": survives})
        run_here(run, tmp_path / str(survives))
    for name in names:
        kept, plain = (tmp_path / str(survives) / "final" / f"{name}.npy" for survives in (True, False))
        assert kept.read_bytes() == plain.read_bytes()


SEEDS = [
    *range(2),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 5)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 50)),
]


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures(seed, tmp_path):
    """Whatever fails when, the run ends; the same run gives the same bits; no step is applied twice."""
    draw = generator(seed, "worker", 0, "survive")
    validators, servers = ((0, 1), (1, 1), (2, 2), (3, 1), (1, 3))[seed % 5]
    failures = drawn_failures(draw)
    tables = {
        "simulation": drawn_costs(draw, 2 * STEP),
        "communication": {"participation": float(draw.choice([1.0, 0.7])), "skip_rate": 0.2},
        "asynchronous": {"absent": "reset", "updates_per_refresh": str(draw.choice(["share", "queued"]))},
        "checkpoint": {"every": int(draw.integers(0, 3))},
    }
    if draw.random() < 0.4:
        tables["communication"]["compression"] = {"kind": "int8", "direction": "both"}
    workers = int(draw.integers(3, 6))
    if seed % 2:
        tables["asynchronous"] |= {"buffer": 3, "staleness": {"kind": "polynomial"}}
        tables["validation"] = {"rule": {"kind": "median"}, "weights": [1.0 + k for k in range(workers)]}
    run = asynchronous(failures, servers=servers, validators=validators, workers=workers, **tables)
    run = run.model_copy(update={"seed": seed})
    assert not list(contradictions(run))
    for name in ("one", "two"):
        run_here(run, tmp_path / name)
        assert RunDirectory(tmp_path / name).done
    for server in range(servers):
        one, two = ((tmp_path / name / "final" / f"server-{server}.npy").read_bytes() for name in ("one", "two"))
        assert one == two
        order = [(line["reader"], line["request"]) for line in lines(tmp_path / "one", f"server-{server}", "applied")]
        assert order == [(line["reader"], line["request"]) for line in lines(tmp_path / "one", "server-0", "applied")]
    for worker in range(run.topology.workers):
        assert not lines(tmp_path / "one", f"worker-{worker}", "rejected"), "models for its predecessor are dropped"
        steps = executed(tmp_path / "one", f"worker-{worker}")
        assert steps == [*range(2, 2 * len(steps) + 1, 2)], (worker, steps)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(4))
def test_crashes_and_losses(seed, tmp_path):
    """A run that crashes goes on without repeating a step that was applied; checkpoints need no lost worker."""
    draw = generator(seed, "worker", 1, "crashes")
    validators, servers = ((0, 1), (1, 1), (2, 2), (1, 2))[seed % 4]
    failures = {"every": 1.0, "repair": float(draw.choice([0.1, 3600.0]))}
    run = asynchronous(failures, validators=validators, servers=servers, checkpoint={"every": 1})
    run = run.model_copy(update={"seed": seed})
    play_through(run, tmp_path, [int(draw.integers(300, 900)) for _ in range(3)])
    for worker in range(4):
        steps = [line["step"] for line in valid(tmp_path, f"worker-{worker}", "round")]
        assert steps == sorted(set(steps)), worker


def test_a_checkpoint_has_no_part_of_a_lost_worker(tmp_path):
    run = asynchronous({"process": "worker-2", "at": [0.5], "repair": 3600}, validators=1)
    decider = tmp_path / "records" / "validator-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"event": "lost"' in decider.read_text())
    (position,) = (tmp_path / "checkpoints").iterdir()
    assert "worker-2" not in of_checkpoint(tmp_path, int(position.name))
    before = [line["step"] for line in lines(tmp_path, "worker-2", "round")]
    assert play(run, tmp_path)
    after = [line["step"] for line in lines(tmp_path, "worker-2", "round")][len(before) :]
    assert after[0] == before[-1] + 2


def test_a_checkpoint_has_the_part_of_a_replacement(tmp_path):
    run = asynchronous({"process": "worker-2", "at": [0.5], "repair": 0.1}, validators=1)
    record = tmp_path / "records" / "worker-2.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"round"' in record.read_text().partition('"incarnation": 1')[2])
    (position,) = (tmp_path / "checkpoints").iterdir()
    assert "worker-2" in of_checkpoint(tmp_path, int(position.name))


@pytest.mark.parametrize("validators", [0, 1])
def test_steps_that_no_update_has_are_taken_again(validators, tmp_path):
    """A worker that is absent goes on training; what is lost with it enters no update, and no step enters two."""
    keys = {"asynchronous": {"absent": "accumulate"}, "communication": {"participation": 0.4}}
    run = asynchronous({"process": "worker-2", "every": 0.7}, validators=validators, **keys)
    run_here(run, tmp_path)
    assert len(lines(tmp_path, "validator-0" if validators else "server-0", "replaced")) > 1
    applied = 0
    for line in lines(tmp_path, "worker-2"):
        if line["event"] == "start":
            step = applied
        elif line["event"] == "round":
            assert line["step"] == step + 2, "it goes on after the last update that was applied"
            step = line["step"]
            applied = step if line["participated"] else applied


def test_a_replacement_that_is_admitted_after_the_end_ends(tmp_path):
    """Validator 1 hears of the end 0.5 s after the server has ended."""
    slow = {"simulation": {"local": {"latency": 0.5}}}
    run_here(asynchronous(validators=2, **slow), tmp_path / "whole")
    (end,) = lines(tmp_path / "whole", "server-0", "end")
    failure = {"process": "worker-1", "at": [end["time"] - 0.2], "repair": 0.4}
    run_here(asynchronous(failure, validators=2, **slow), tmp_path / "late")
    assert lines(tmp_path / "late", "validator-1", "replaced")
    assert RunDirectory(tmp_path / "late").done


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"servers": 2}, "survive.workers: a lost worker may have sent its update to some servers only"),
        ({"survive": {"min_workers": 2}}, "survive.min_workers: in an asynchronous run nobody waits"),
    ],
)
def test_what_a_run_does_not_survive_is_refused(tables, expected):
    problems = list(contradictions(asynchronous({"process": "worker-2", "at": [1.0]}, **tables)))
    assert any(expected in f"{dotted(problem.path)}: {problem.message}" for problem in problems), problems
