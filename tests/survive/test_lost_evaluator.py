"""Runs in virtual time that lose the evaluator, and validators and workers beside it."""

import pytest
from executed import lines, run_here
from interrupted import play_through
from survive import test_lost_async_validators, test_lost_validators
from survive.test_lost_validators import run_of

from hpcps.records.run_directory import RunDirectory
from hpcps.roles.evaluator import EvaluatorClient
from hpcps.seeds import generator
from hpcps.spec.checks import contradictions
from hpcps.spec.simulation import ProcessFailure

ONE = {"evaluators": 1}
SLOW = {"evaluate": 0.35}


def evaluated(folder):
    """Return the accuracy and the loss of each evaluated epoch; no epoch is evaluated twice on the same model."""
    found = {}
    for line in lines(folder, "validator-0", "evaluation"):
        found[line["epoch"]] = line["accuracy"], line["loss"]
    return found


def assert_every_epoch_is_recorded(run, folder):
    """An epoch has an evaluation, or a later model came first; the last one is evaluated."""
    left_out = {line["epoch"] for line in lines(folder, "validator-0", "not_evaluated")}
    assert {*evaluated(folder)} | left_out == {*range(1, run.train.epochs + 1)}
    assert run.train.epochs in evaluated(folder)


def also_losing_the_evaluator(run, seed):
    """Return a run that loses its evaluator at random, too."""
    draw = generator(seed, "evaluator", 0, "survive")
    failure = ProcessFailure(process="evaluator", every=float(draw.uniform(0.3, 2.0)), repair=0.2)
    failures = (*run.simulation.failures, failure)
    costs = {"failures": failures, "evaluate": float(draw.choice([0.0, 0.05, 0.4]))}
    run = run.model_copy(update={"simulation": run.simulation.model_copy(update=costs)})
    assert not list(contradictions(run))
    return run


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [0.1, 0.9, 1.2])
def test_the_evaluator_is_replaced_and_evaluates_the_same_models(moment, tmp_path):
    """It fails before there is a model, while it evaluates one, and between two."""
    whole = run_of(topology=ONE, train={"epochs": 4}, simulation=SLOW)
    run_here(whole, tmp_path / "whole")
    failure = {"process": "evaluator", "at": [moment], "noticed": 0.05, "repair": 0.3}
    run = run_of(failure, topology=ONE, train={"epochs": 4}, simulation=SLOW)
    run_here(run, tmp_path / "lost")
    assert_every_epoch_is_recorded(run, tmp_path / "lost")
    known = evaluated(tmp_path / "whole")
    found = evaluated(tmp_path / "lost")
    assert found == {epoch: known[epoch] for epoch in found}
    names = [folder / "final" / "server-0.npy" for folder in (tmp_path / "whole", tmp_path / "lost")]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert [line.get("incarnation") for line in lines(tmp_path / "lost", "evaluator-0", "start")] == [None, 1]
    assert [line["process"] for line in lines(tmp_path / "lost", "validator-0", "lost")] == ["evaluator-0"]
    assert RunDirectory(tmp_path / "lost").done


@pytest.mark.parametrize("first", ["evaluator", "validator-0"])
def test_the_evaluator_and_the_coordinator_fail_together(first, tmp_path):
    """The model that the evaluator had is evaluated by the one replacement for the other."""
    second = {"evaluator": "validator-0", "validator-0": "evaluator"}[first]
    failures = [{"process": first, "at": [1.0], "repair": 0.6}, {"process": second, "at": [1.1], "repair": 0.2}]
    run = run_of(*failures, topology=ONE, train={"epochs": 4}, simulation=SLOW)
    run_here(run, tmp_path)
    assert_every_epoch_is_recorded(run, tmp_path)
    assert RunDirectory(tmp_path).done


@pytest.mark.parametrize("lost", ["evaluator", "validator-0"])
def test_one_that_is_lost_at_the_last_evaluation(lost, tmp_path):
    slow = {"evaluate": 1.0}
    whole = run_of(topology=ONE, simulation=slow)
    run_here(whole, tmp_path / "whole")
    end = lines(tmp_path / "whole", "server-0", "round")[-1]["time"]
    run = run_of({"process": lost, "at": [end + 0.3]}, topology=ONE, simulation=slow)
    run_here(run, tmp_path / "lost")
    assert_every_epoch_is_recorded(run, tmp_path / "lost")
    last = run.train.epochs
    assert evaluated(tmp_path / "lost")[last] == evaluated(tmp_path / "whole")[last]


RANDOM = {"sync": test_lost_validators.random_run, "async": test_lost_async_validators.random_run}
SEEDS = [
    *range(2),
    *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 8)),
    *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 100)),
]


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("mode", RANDOM)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_failures(mode, seed, tmp_path):
    """Whatever fails when, the run ends, and its last model is evaluated."""
    run = also_losing_the_evaluator(RANDOM[mode](seed, topology=ONE), seed)
    run_here(run, tmp_path)
    assert RunDirectory(tmp_path).done
    assert run.train.epochs in evaluated(tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2))
def test_crashes_and_losses(seed, tmp_path):
    """A run that stops at checkpoints goes on, whoever is lost meanwhile."""
    run = run_of(
        {"process": "evaluator", "every": 0.5}, {"process": "validator", "every": 1.0},
        topology=ONE, checkpoint={"every": 1}, simulation=SLOW,
    )  # fmt: skip
    run = run.model_copy(update={"seed": seed})
    draw = generator(seed, "evaluator", 1, "crashes")
    play_through(run, tmp_path, [int(draw.integers(150, 300)) for _ in range(3)])
    assert any(line.get("continues") for line in lines(tmp_path, "server-0", "start")), "it went on from a checkpoint"
    assert run.train.epochs in evaluated(tmp_path)


def test_a_client_that_sends_nothing_again_is_found(tmp_path, monkeypatch):
    """These tests can fail."""
    monkeypatch.setattr(EvaluatorClient, "note", lambda self, event: iter(()))
    with pytest.raises(Exception, match="no role can proceed"):
        test_the_evaluator_is_replaced_and_evaluates_the_same_models(0.9, tmp_path)
