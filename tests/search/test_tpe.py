"""A search by TPE: what Optuna proposes from scores, interrupted and extended searches, and what needs no Optuna."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_experiment import small_experiment

import hpcps
from hpcps.cli.main import main
from hpcps.errors import RunError, SpecError
from hpcps.execution.sweep.search import execute_search
from hpcps.records.search import ConfigurationScore, RunScore, ranked, write_proposals
from hpcps.spec.load import load_experiment
from hpcps.spec.search_groups import SearchGroup

LR = '"train.optimizer.lr" = { low = 0.001, high = 10.0, log = true }\n'
BATCH = '"train.batch_size" = { low = 2, high = 8 }\n'
RULES = '[[sweep]]\n"validation.rule" = [{ kind = "average" }, { kind = "median" }]\n'

needs_optuna = pytest.mark.usefixtures("optuna")


@pytest.fixture
def optuna() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'hpcps[search]'")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "lr.toml"


def write(file: Path, keys: str = "startup = 4\nsamples = 8", values: str = LR, tables: str = "") -> Path:
    table = f'[search]\nkind = "tpe"\nepochs = 1\n{keys}\n[search.values]\n{values}'
    file.write_text(small_experiment("lr", {"train.epochs": 1}, table + tables))
    return file


def groups_of(file: Path, *overrides: str) -> tuple[SearchGroup, ...]:
    return load_experiment(file, overrides, results=file.parent / "results").search


def group_of(file: Path, *overrides: str) -> SearchGroup:
    (group,) = groups_of(file, *overrides)
    return group


def rates(group: SearchGroup) -> list[float]:
    return [each.values["train.optimizer.lr"] for each in group.configurations]


Quality = Callable[[float], tuple[float, float, str]]


def scored(group: SearchGroup, quality: Quality) -> list[ConfigurationScore]:
    """Return the scores of all configurations, given accuracy, loss and the reason of loss by the learning rate."""
    scores = {
        point.run_id: RunScore(point.run_id, *quality(each.values["train.optimizer.lr"]))
        for each in group.configurations
        for point in each.rungs[0]
    }
    return ranked(group, range(len(group.configurations)), 0, scores)


def searched(file: Path, quality: Quality) -> SearchGroup:
    """Return the group after the whole search, of which no run is executed."""
    from hpcps.execution.sweep.proposals import propose

    while (group := group_of(file)).to_propose:
        write_proposals(group, propose(group, scored(group, quality)))
    return group


def distance(rate: float) -> float:
    return abs(math.log10(rate / 0.005))


# What is proposed.


@needs_optuna
@pytest.mark.parametrize("score", ["accuracy", "loss"])
def test_proposals_come_near_to_the_configurations_with_good_scores(file: Path, score: str) -> None:
    write(file, f'startup = 8\nsamples = 24\nscore = "{score}"')
    # A search by the other number in this direction, or in the other direction, goes to the ends.
    found = rates(searched(file, lambda rate: (-distance(rate), distance(rate), "")))
    assert sum(map(distance, found[-8:])) < sum(map(distance, found[:8])) / 2


@needs_optuna
def test_configurations_with_lost_runs_are_worse_than_all_others(file: Path) -> None:
    write(file, "startup = 10\nsamples = 26\nbatch = 4")
    # High rates have the best accuracy, and are lost.
    found = rates(searched(file, lambda rate: (rate, 1 / rate, "diverged" if rate > 0.1 else "")))
    drawn, proposed = found[:10], found[-8:]
    assert sum(rate > 0.1 for rate in proposed) / 8 < sum(rate > 0.1 for rate in drawn) / 10
    # If all are lost, there are proposals nevertheless.
    write(file, "startup = 3\nsamples = 5\nseed = 2")
    assert len(searched(file, lambda rate: (math.nan, math.nan, "failed")).configurations) == 5


@needs_optuna
def test_proposals_depend_on_the_scores_and_the_seed_only(file: Path) -> None:
    def proposed(keys: str, better: float = 0.3) -> list[float]:
        write(file, f"startup = 5\nsamples = 11\nbatch = 2\n{keys}")
        group_of(file).proposals.unlink(missing_ok=True)
        return rates(searched(file, lambda rate: (-abs(math.log(rate / better)), 0.0, "")))[5:]

    first = proposed("seed = 1")
    assert len(set(first)) == 6
    assert proposed("seed = 1") == first
    assert set(proposed("seed = 2")).isdisjoint(first)
    assert proposed("seed = 1", better=0.002) != first


@needs_optuna
def test_proposed_values_are_those_of_the_lists_and_ranges(file: Path) -> None:
    rule = '"validation.rule" = [{ kind = "average" }, { kind = "median" }]\n'
    write(file, "startup = 2\nsamples = 20\nbatch = 3", LR + BATCH + rule)
    group = searched(file, lambda rate: (rate, 1.0, ""))
    assert len(group.proposed) == 18
    found = [each.values for each in group.configurations]
    assert {type(values["train.batch_size"]) for values in found} == {int}
    assert {values["train.batch_size"] for values in found} <= set(range(2, 9))
    assert {values["validation.rule"]["kind"] for values in found} == {"average", "median"}
    assert all(0.001 <= rate <= 10 and rate == float(f"{rate:.4g}") for rate in rates(group))
    # A list has few values: those that are proposed again run once.
    write(file, "startup = 2\nsamples = 9", '"train.optimizer.lr" = [0.01, 0.1, 1.0]\n')
    assert sorted(rates(searched(file, lambda rate: (rate, 1.0, "")))) == [0.01, 0.1, 1.0]


# What is left of an interrupted search, and what continues it.


@needs_optuna
def test_more_samples_continue_a_search_and_have_another_result(file: Path) -> None:
    def quality(rate: float) -> tuple[float, float, str]:
        return -distance(rate), 1.0, ""

    short = searched(write(file, "startup = 4\nsamples = 7"), quality)
    write(file, "startup = 4\nsamples = 9")
    begun = group_of(file)
    assert (begun.proposed, begun.to_propose, rates(begun)) == (short.proposed, 1, rates(short))
    assert begun.result != short.result
    long = searched(file, quality)
    assert rates(long)[:7] == rates(short)
    assert len(rates(long)) == 9
    write(file, "startup = 4\nsamples = 7")
    assert (group_of(file).result, rates(group_of(file))) == (short.result, rates(short))


@needs_optuna
def test_each_group_has_its_own_proposals(file: Path) -> None:
    write(file, 'startup = 3\nsamples = 4\nper = ["validation.rule"]', tables=RULES)
    executed: list[list[str]] = []

    def execute(rung: str, points: object, begun: object) -> bool:
        executed.append([rung, str(len(points)), str(len(begun))])  # type: ignore[arg-type]
        return True

    found = execute_search(groups_of(file), lambda: groups_of(file), file.parent / "results/lr.search", execute)
    assert found is not None
    groups, scores = found
    assert len({group.proposals for group in groups}) == 2
    assert [[each.place for each in of_group] for of_group in scores] == [[0, 1, 2, 3]] * 2
    for group, rate in zip(groups, (0.5, 0.7), strict=True):
        write_proposals(replace(group, proposed=()), [{"train.optimizer.lr": rate}])
    assert [rates(group)[3] for group in groups_of(file)] == [0.5, 0.7]
    assert executed == [["6 runs of 1 epoch", "6", "6"], ["proposal 1 of 1: 2 runs of 1 epoch", "2", "8"]]


@needs_optuna
def test_a_file_that_changes_during_its_search_ends_it(file: Path) -> None:
    def changed() -> tuple[SearchGroup, ...]:
        return groups_of(write(file, values=LR.replace("10.0", "5.0")))

    with pytest.raises(RunError, match="the experiment file was changed during its search: search again"):
        execute_search(groups_of(write(file)), changed, file.parent / "results/lr.search", lambda *_: True)


def test_damaged_proposals_are_refused(file: Path) -> None:
    group = group_of(write(file))
    write_proposals(group, [{"train.optimizer.lr": 0.5}])
    assert rates(group_of(file)) == [*rates(group), 0.5]
    for content in ('[{"train.optimizer.lr": 0.5}', '[{"train.batch_size": 4}]', "{}", "[]", "[1]"):
        group.proposals.write_text(content)
        with pytest.raises(SpecError, match=r"proposals/\w+\.json: .*: delete it, and search again"):
            group_of(file)
    group = group_of(write(file, values='"train.optimizer.lr" = [0.01, 0.1]\n', keys="startup = 1\nsamples = 3"))
    write_proposals(group, [{"train.optimizer.lr": 0.5}])
    with pytest.raises(SpecError, match="not the proposals of this search: delete it, and search again"):
        group_of(file)


# Mistakes.


def test_mistakes_in_the_table_and_at_the_ends_of_a_range_are_listed_before_the_first_run(file: Path) -> None:
    with pytest.raises(SpecError, match="startup must be less than samples, and 10 is not less than 10: nothing"):
        group_of(write(file, "samples = 10"))
    # The configuration that is drawn is right, but a proposal might not be.
    values = LR + '"train.batch_size" = { low = 2, high = 50 }\n"train.optimizer.momentum" = [0.0, 0.5, 1.5]\n'
    with pytest.raises(SpecError) as caught:
        group_of(write(file, "startup = 1\nsamples = 3", values))
    lines = str(caught.value).split("\n  ")[1:]
    assert len(lines) == 2
    assert "leave 42 in each, fewer than a batch of 50" in lines[0]
    assert "train.optimizer.momentum: expects a number" in lines[1]
    assert "got 1.5" in lines[1]


def test_an_optuna_that_cannot_be_imported_is_known_before_the_first_run(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = file.parent / "broken" / "optuna"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no library')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(broken.parent))
    assert main(["search", str(write(file)), "--results", str(file.parent / "results")]) == 2
    needed = "needs the package optuna, which cannot be imported here (ImportError: no library): pip install --force-"
    assert needed in capsys.readouterr().err
    assert not (file.parent / "results").exists()


def test_a_search_without_optuna_says_how_to_install_it(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # so Python finds no such package
    needed = "[search] kind = \"tpe\" needs the package optuna, which is not installed: pip install 'hpcps[search]'"
    arguments = [str(write(file)), "--results", str(file.parent / "results")]
    assert main(["search", *arguments]) == 2
    assert f"hpcps: {file}: {needed}\n" in capsys.readouterr().err
    assert not (file.parent / "results").exists()
    assert main(["check", *arguments]) == 0
    shown = capsys.readouterr().out
    assert f"warning: {needed}" in shown
    assert "tpe: 4 configurations of train.optimizer.lr" in shown
    assert "then 4 proposed from the scores of those before, 1 at a time" in shown
    # What was proposed needs no Optuna.
    group = group_of(file)
    write_proposals(group, [{"train.optimizer.lr": rate} for rate in (0.2, 0.3, 0.4, 0.5)])
    assert main(["check", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "optuna" not in shown
    assert "tpe: 8 configurations" in shown


# Studies of earlier versions.


@pytest.mark.parametrize(
    ("table", "values", "name"),
    [
        ('kind = "grid"', "[0.01, 0.1, 1.0]", "e5694705ef"),
        ('kind = "random"\nsamples = 4', "{ low = 0.001, high = 1.0, log = true }", "22f6b33f32"),
        ('kind = "halving"\nfactor = 2', "[0.01, 0.1, 1.0]", "2d8384b85a"),
    ],
)
def test_results_of_searches_before_tpe_are_read(tmp_path: Path, table: str, values: str, name: str) -> None:
    text = 'name = "lr"\ntopology.workers = 2\nmodel.name = "mlp"\nmodel.backend = "torch"\ndata.name = "digits"\n'
    text += f'train.epochs = 2\n[search]\nepochs = 1\n{table}\n[search.values]\n"train.optimizer.lr" = {values}\n'
    (group,) = load_experiment("lr.toml", content=text).search
    chosen = {"values": group.configurations[1].values, "per": {}, "runs": []}
    result = tmp_path / "lr.search" / "chosen" / f"{name}.json"
    result.parent.mkdir(parents=True)
    result.write_text(json.dumps(chosen))
    experiment = load_experiment("lr.toml", content=text, results=tmp_path)
    assert experiment.points[0].run.train.optimizer.lr == rates(group)[1]


# Whole searches.


@needs_optuna
@pytest.mark.thorough
@pytest.mark.usefixtures("starts_processes")
def test_a_killed_search_continues_with_the_same_proposals(file: Path, tmp_path: Path) -> None:
    keys = "startup = 2\nsamples = 5"
    whole = hpcps.search(write(file, keys), results=tmp_path / "whole")._loaded.search[0]
    results = tmp_path / "results"
    with subprocess.Popen(
        [sys.executable, "-m", "hpcps", "search", str(file), "--results", str(results)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        end = time.monotonic() + 120
        while not list(results.glob("lr.search/proposals/*.json")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    killed = group_of(file)
    assert killed.chosen is None
    assert killed.to_propose == 1
    again = hpcps.search(file, results=results)._loaded.search[0]
    assert again.chosen is not None
    assert whole.chosen is not None
    assert rates(again) == rates(whole)
    assert again.chosen["tried"] == whole.chosen["tried"]
    assert len(again.chosen["tried"]) == 5
    assert len(list((results / "lr.search/runs").iterdir())) == 5
