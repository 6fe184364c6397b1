"""Runs in virtual time without validators that lose worker 0, which gives the initial weights and evaluates."""

from pathlib import Path

import pytest
from executed import lines, run_here
from interrupted import play
from replay.recorded import replayed
from survive.test_crashes_with_losses import of_checkpoint, valid
from survive.test_lost_async_workers import asynchronous
from survive.test_lost_validators import assert_evaluated
from survive.test_lost_workers import STEP, drawn_costs, survivors

from hpcps.records.run_directory import RunDirectory
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions


def quorum(*failures, **tables):
    """Return a run whose rounds wait for two workers."""
    return survivors(*failures, **{**tables, "train": {"quorum": 2, **tables.get("train", {})}})


MODES = {"synchronous": survivors, "quorum": quorum, "asynchronous": asynchronous}


def worker_0(*moments, **more):
    return {"process": "worker-0", "at": list(moments), **more}


def updates_of_worker_0(run, folder):
    """Return how many steps worker 0 had taken at each of its updates that entered the model, as far as is recorded."""
    own = lines(folder, "worker-0", "round")
    if run.train.mode == "sync":
        steps = {line["round"]: line["step"] for line in own}
        late = lambda line: line["round"] - dict(map(tuple, line["late"])).get(0, 0)  # noqa: E731
        answered = [late(line) for line in lines(folder, "server-0", "round") if 0 in line["arrived"]]
        return [steps[round] for round in answered if round in steps]
    return [line["request"] for line in lines(folder, "server-0", "applied") if line["reader"] == "worker-0"]


def assert_whole(run, folder):
    """Each epoch is evaluated, servers agree, no step of worker 0 counts twice, and a replay gives the same bits."""
    assert RunDirectory(folder).done
    assert_evaluated(run, lines(folder, "worker-0", "evaluation"))
    updates = updates_of_worker_0(run, folder)
    assert updates == sorted(set(updates))
    if run.train.mode == "sync":
        names = [f"server-{s}" for s in range(run.topology.servers)]
        first, *others = ([line["participants"] for line in lines(folder, name, "round")] for name in names)
        assert all(other == first for other in others)
    result, _ = replayed(RunDirectory(folder), folder.with_name("replay"))
    assert result.difference is None, result.difference


@pytest.mark.sample(2)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("moment", [0.0, 0.5, 1.05])
def test_rounds_go_on_and_its_replacement_evaluates(moment, servers, tmp_path):
    """An epoch of five rounds ends at 1 s. Nothing begins without initial weights."""
    run = survivors(worker_0(moment), servers=servers, simulation={"evaluate": 0.1})
    run_here(run, tmp_path / "run")
    assert_whole(run, tmp_path / "run")
    updates = updates_of_worker_0(run, tmp_path / "run")
    assert updates == [2 * (n + 1) for n in range(len(updates))]
    there = [0 in line["participants"] for line in lines(tmp_path / "run", "server-0", "round")]
    assert there.count(False) == (0 if moment == 0 else 2)
    assert all(1 in line["participants"] for line in lines(tmp_path / "run", "server-0", "round"))
    evaluated = {line["epoch"]: line["round"] for line in lines(tmp_path / "run", "worker-0", "evaluation")}
    assert evaluated == {1: 7 if moment == 1.05 else 5, 2: 10, 3: 15}


def test_the_only_worker_is_replaced(tmp_path):
    """The round waits for it."""
    run = survivors(worker_0(0.5, repair=5.0), workers=1)
    run_here(run, tmp_path / "run")
    assert_whole(run, tmp_path / "run")
    (paused,) = lines(tmp_path / "run", "server-0", "paused")
    assert (paused["workers"], paused["needed"]) == (0, 1)


@pytest.mark.parametrize("after", [0.06, 0.12])
def test_one_that_has_given_the_initial_weights_to_one_server_only(after, tmp_path):
    failure = worker_0(0.07, 0.07 + after, noticed=0.01, repair=0.01)
    run = survivors(failure, servers=2, simulation={"messages": {"send": 0.04}})
    run_here(run, tmp_path / "run")
    assert_whole(run, tmp_path / "run")
    assert [line["process"] for line in lines(tmp_path / "run", "server-0", "lost")] == ["worker-0"] * 2


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("mode", MODES)
def test_one_that_evaluates_the_last_model(mode, participation, tmp_path):
    """With participation 0.5 it has sent nothing of its last cycle."""
    slow = {"simulation": {"evaluate": 1.0}, "communication": {"participation": participation}}
    whole = MODES[mode](**slow)
    run_here(whole, tmp_path / "whole")
    end = lines(tmp_path / "whole", "server-0", "round" if mode != "asynchronous" else "applied")[-1]["time"]
    run = MODES[mode](worker_0(end + 0.3), **slow)
    run_here(run, tmp_path / "lost")
    assert_whole(run, tmp_path / "lost")
    assert [line.get("incarnation") for line in lines(tmp_path / "lost", "worker-0", "start")] == [None, 1]
    models = [(tmp_path / each / "final" / "server-0.npy").read_bytes() for each in ("whole", "lost")]
    assert models[0] == models[1]
    steps = [lines(tmp_path / each, "worker-0", "evaluation")[-1]["step"] for each in ("whole", "lost")]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("stops", [False, True])
def test_one_that_is_lost_before_it_ends_an_asynchronous_run(stops, tmp_path):
    """Its last update is in the model, and its replacement, or it itself in a run that goes on, takes no more steps."""
    costs = {"simulation": {"messages": {"send": 0.05}}}
    whole = asynchronous(**costs)
    run_here(whole, tmp_path / "whole")
    expected = updates_of_worker_0(whole, tmp_path / "whole")
    own = lines(tmp_path / "whole", "server-0", "applied")
    update, stop = [line["time"] for line in own if line["submitter"] == "worker-0"][-2:]
    moment = (update + stop) / 2
    folder = tmp_path / "run"
    if stops:
        run = asynchronous(**costs)
        record = Path(folder / "records" / "server-0.jsonl")
        last = f'"number": {expected[-2]}, "reader": "worker-0"'
        assert not play(run, folder, stop=lambda: record.exists() and last in record.read_text())
        assert play(run, folder)
    else:
        run = asynchronous(worker_0(moment, noticed=0.01, repair=0.01), **costs)
        run_here(run, folder)
        assert_whole(run, folder)
    steps = [line["step"] for line in valid(folder, "worker-0", "round")]
    assert max(steps) == max(line["step"] for line in lines(tmp_path / "whole", "worker-0", "round"))


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpoint_has_no_part_of_it(mode, tmp_path):
    """The run stops after its first epoch, which is evaluated once."""
    run = MODES[mode](worker_0(1.3, repair=3.0))
    record = tmp_path / "records" / "server-0.jsonl"
    assert not play(run, tmp_path, stop=lambda: '"event": "lost"' in record.read_text())
    (position,) = (tmp_path / "checkpoints").iterdir()
    assert "worker-0" not in of_checkpoint(tmp_path, int(position.name))
    assert play(run, tmp_path)
    assert [line["epoch"] for line in valid(tmp_path, "worker-0", "evaluation")] == [1, 2, 3]


def test_an_evaluation_whose_line_is_not_valid_any_more_is_repeated(tmp_path):
    """Worker 0 takes steps that it does not send, and is lost after it has evaluated in between."""
    tables = {"communication": {"participation": 0.5}, "simulation": {"evaluate": 0.05}}
    for tenths in (14, 15, 16, 17):
        folder = tmp_path / str(tenths)
        run = asynchronous(worker_0(tenths / 10, repair=3.0), workers=3, **tables)
        record = folder / "records" / "server-0.jsonl"
        assert not play(run, folder, stop=lambda record=record: '"event": "lost"' in record.read_text())
        assert play(run, folder)
        assert [line["epoch"] for line in valid(folder, "worker-0", "evaluation")] == [1, 2, 3]


@pytest.mark.parametrize("first", ["evaluator", "worker-0"])
def test_the_evaluator_and_worker_0_fail_together(first, tmp_path):
    second = {"evaluator": "worker-0", "worker-0": "evaluator"}[first]
    failures = [{"process": first, "at": [1.0], "repair": 0.6}, {"process": second, "at": [1.1], "repair": 0.2}]
    run = survivors(*failures, topology={"evaluators": 1}, simulation={"evaluate": 0.35})
    run_here(run, tmp_path)
    found = {line["epoch"] for line in lines(tmp_path, "worker-0", "evaluation")}
    left_out = {line["epoch"] for line in lines(tmp_path, "worker-0", "not_evaluated")}
    assert found | left_out == {1, 2, 3}
    assert 3 in found
    assert RunDirectory(tmp_path).done


def random_run(mode, seed):
    """Return a random run that loses worker 0, and others."""
    draw = generator(seed, "worker", 0, "worker 0")
    servers = 1 if mode == "asynchronous" else int(draw.integers(1, 3))
    late = {"noticed": float(draw.choice([0.0, 0.05, 0.2])), "repair": float(draw.choice([0.0, 0.05, 0.3, 1.0]))}
    failures = [worker_0(*sorted(map(float, draw.uniform(0.0, 3.5, 2))), **late)]
    if draw.random() < 0.4:
        failures.append({"process": "worker", "every": 1.0, "noticed": 0.05})
    of_servers = bool(draw.random() < 0.4)
    if of_servers:
        failures.append({"process": "server", "at": [float(draw.uniform(0.1, 3.0))], "repair": 0.2})
    tables = {
        "simulation": {**drawn_costs(draw, 2 * STEP), "evaluate": float(draw.choice([0.0, 0.05, 0.35]))},
        "survive": {"servers": of_servers},
        "checkpoint": {"every": 0, "rounds": int(draw.choice([0, 2]))},
        "communication": {"participation": float(draw.choice([1.0, 0.7]))},
    }
    if mode == "quorum":
        tables["train"] = {"late": ("next", "drop")[seed % 2], "grace": float(draw.choice([0.0, 0.05]))}
    run = MODES[mode](*failures, servers=servers, workers=int(draw.integers(3, 6)), **tables)
    run = run.model_copy(update={"seed": seed})
    assert not list(contradictions(run))
    return run


SEEDS = [
    *range(2),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 6)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 100)),
]


@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures(mode, seed, tmp_path):
    run = random_run(mode, seed)
    run_here(run, tmp_path / "run")
    assert_whole(run, tmp_path / "run")


def test_a_replay_ends_a_lost_process_while_others_take_a_step(tmp_path):
    """Random runs have found it: worker 0, which keeps models for the evaluator, has a checkpoint left to write."""
    run = survivors(
        worker_0(1.043074822802085, 1.2951063343088294), {"every": 0.5, "repair": 0.2, "noticed": 0.05},
        {"process": "server", "at": [2.3999537811824454], "repair": 0.2, "noticed": 0.05},
        workers=3, topology={"evaluators": 1}, survive={"servers": True}, checkpoint={"every": 0, "rounds": 2},
        train={"epochs": 2, "quorum": 2, "late": "drop", "optimizer": {"lr": 0.05, "momentum": 0.9}},
        simulation={"step": {"kind": "uniform", "low": 0.08, "high": 0.12}, "evaluate": 0.35},
    )  # fmt: skip
    run_here(run, tmp_path / "run")
    result, _ = replayed(RunDirectory(tmp_path / "run"), tmp_path / "replay")
    assert result.difference is None, result.difference
