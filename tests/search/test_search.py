"""A search: the runs that it makes of a file, its mistakes, how the best values are determined, and whole searches."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import Opened
from small_experiment import small_experiment
from training_examples import make_run

import hpcps
from hpcps.cli.main import main
from hpcps.data.shards import all_shards, held_out_samples, shard_size
from hpcps.errors import RunError, SpecError
from hpcps.execution.sweep.search import conclude
from hpcps.figures.publish import write_files
from hpcps.figures.search import draw
from hpcps.records.search import ConfigurationScore, RunScore, ranked, score_runs
from hpcps.records.variants import variants
from hpcps.spec.identity import run_id
from hpcps.spec.load import LoadedExperiment, load_experiment
from hpcps.spec.search_groups import SearchGroup
from hpcps.training.build import build_trainer

RULES = '[[sweep]]\n"validation.rule" = [{ kind = "average" }, { kind = "median" }]\n'
ATTACKS = '[[sweep]]\nattack = [{ kind = "none" }, { kind = "negative", scale = 6, rate = 0.2 }]\n'
LR = '[search.values]\n"train.optimizer.lr" = [0.01, 0.1, 1.0]\n'
GRID = f'[search]\nkind = "grid"\nepochs = 1\n{LR}'

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(search: str = GRID, tables: str = "", **keys: object) -> Path:
        path = tmp_path / "lr.toml"
        named = {key.replace("__", "."): value for key, value in keys.items()}
        path.write_text(small_experiment("lr", named, search + tables))
        return path

    return write


def mistakes(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_experiment(path, overrides)
    return [line.partition(": ")[2] for line in str(caught.value).replace("\n      ", " ").split("\n  ")[1:]]


# The held-out samples.


@settings(deadline=None, derandomize=True, max_examples=examples(12))
@given(
    holdout=st.sampled_from([0.1, 0.25, 0.5]),
    split=st.sampled_from(["iid", "by_class", "dirichlet"]),
    seed=st.integers(0, 2**32),
    limit=st.sampled_from([None, 700]),
    validators=st.booleans(),
)
def test_held_out_samples_are_in_no_shard(holdout, split, seed, limit, validators):
    data = {"name": "digits", "split": split, "alpha": 100.0, "holdout": holdout, "limit": limit}
    data |= {} if split == "dirichlet" else {"alpha": 0.5}
    run = make_run(data, workers=4, seed=seed)
    used = min(limit or 1437, 1437)
    held = held_out_samples(run.data, seed)
    labels = Opened(run.data).train.labels
    shards = all_shards(run.data, shard_size(run.data, 16), seed, labels, held_out=run.holds_out)
    assert len(held) == round(holdout * used) == len(set(held.tolist()))
    together = np.concatenate([*shards, held])
    assert len(np.unique(together)) == len(together)
    assert together.max() < used
    assert {len(shard) for shard in shards} == {(used - len(held)) // 5}


def test_evaluations_use_the_held_out_samples_and_shards_without_them_stay_as_they_were():
    run = make_run({"name": "digits", "holdout": 0.25, "limit": 400})
    held = Opened(run.data).train.read(held_out_samples(run.data, run.seed))
    evaluation = build_trainer(run, "worker", 0).evaluate()
    assert evaluation.samples == 100
    assert [sum(row) for row in evaluation.confusion] == np.bincount(held.labels, minlength=10).tolist()
    assert build_trainer(make_run({"name": "digits"}), "worker", 0).evaluate().samples == 360
    assert run_id(make_run({"name": "digits", "holdout": 0.0})) == run_id(make_run({"name": "digits"}))


# The runs of a search.


def runs_of(group: SearchGroup) -> list[list[list[tuple[object, ...]]]]:
    return [
        [
            [(p.run.train.optimizer.lr, p.run.train.epochs, p.run.seed, p.run.attack.kind) for p in rung]
            for rung in each.rungs
        ]
        for each in group.configurations
    ]


def test_each_configuration_runs_in_every_point_that_shares_the_choice(write: Write) -> None:
    search = GRID.replace("epochs = 1", 'epochs = 1\nholdout = 0.3\nper = ["validation.rule"]\nseeds = [3, 4]')
    experiment = load_experiment(write(search, f"{RULES}{ATTACKS}[[sweep]]\nseed = [1, 2]\n"))
    average, median = experiment.search
    assert (average.label, median.label) == ("average", "median")
    assert runs_of(median) == [
        [[(lr, 1, seed, attack) for attack in ("none", "negative") for seed in (3, 4)]] for lr in (0.01, 0.1, 1.0)
    ]
    first = average.configurations[0].rungs[0][0]
    assert (first.run.name, first.run.data.holdout, first.label) == (
        "lr.search",
        0.3,
        "average · none · lr 0.01 · seed 3",
    )
    assert {run_id(point.run) for point in experiment.points}.isdisjoint(
        point.run_id for group in experiment.search for each in group.configurations for point in each.rungs[0]
    )


def test_drawn_values_lie_in_their_ranges_and_do_not_depend_on_other_keys(write: Write) -> None:
    text = '[search]\nkind = "random"\nepochs = 1\nsamples = 40\n[search.values]\n'
    ranges = {
        '"train.optimizer.lr"': "{ low = 0.001, high = 10.0, log = true }",
        '"train.batch_size"': "{ low = 2, high = 4 }",
        '"train.optimizer.momentum"': "[0.0, 0.9]",
    }
    found = {}
    for count in (1, 3):
        lines = "\n".join(f"{key} = {value}" for key, value in list(ranges.items())[:count])
        (group,) = load_experiment(write(text + lines)).search
        found[count] = [each.values for each in group.configurations]
    rates = [values["train.optimizer.lr"] for values in found[3]]
    assert [values["train.optimizer.lr"] for values in found[1]] == list(dict.fromkeys(rates))
    assert all(0.001 <= rate <= 10 for rate in rates)
    assert 10 <= sum(rate < 0.1 for rate in rates) <= 30
    assert {values["train.batch_size"] for values in found[3]} == {2, 3, 4}
    assert {values["train.optimizer.momentum"] for values in found[3]} == {0.0, 0.9}


def test_each_rung_of_halving_has_fewer_configurations_and_more_epochs(write: Write) -> None:
    rates = ", ".join(str(2.0**-k) for k in range(1, 8))
    search = f'[search]\nkind = "halving"\nepochs = 2\nfactor = 2\n[search.values]\n"train.optimizer.lr" = [{rates}]\n'
    (group,) = load_experiment(write(search)).search
    assert group.sizes == (7, 4, 2)
    assert [rung[0].run.train.epochs for rung in group.configurations[0].rungs] == [2, 4, 8]


def test_a_search_that_is_smaller_than_it_seems_has_a_warning(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    search = GRID.replace('"grid"', '"halving"\nsamples = 9')
    few = "[search] has 3 different configurations, fewer than samples = 9, because equal ones are one"
    rung = "[search] has a single rung, because the number of configurations, 3, is not greater than factor = 3"
    assert [each.partition(":")[0] for each in load_experiment(write(search)).warnings] == [few, rung]
    assert load_experiment(write(search.replace("samples = 9", "factor = 2"))).warnings == ()
    assert main(["search", str(write(search)), "--dry-run", "--results", str(write(search).parent)]) == 0
    assert f"hpcps: warning: {few}" in capsys.readouterr().out


def test_set_and_include_end_the_search_of_a_key(write: Write) -> None:
    path = write(GRID, f'{RULES}[[include]]\n"train.optimizer.lr" = 0.5\n')
    assert load_experiment(path, ["train.optimizer.lr=0.2"]).search == ()
    (group,) = load_experiment(path).search
    assert group.members == {0, 1}
    with pytest.raises(SpecError, match=r"a search cannot be set"):
        load_experiment(path, ["search.epochs=3"])


MISTAKES_OF_RUNS = [
    "data.holdout: 16 training samples in 3 shards leave 5 in each, fewer than a batch of 8: use smaller batches, "
    "fewer shards or more samples, or hold out fewer",
    "train.optimizer.lr: expects a number > 0 and ≤ 3.4e+38 (default 0.1), got -0.1",
    'train.optimizer.lr: expects a number > 0 and ≤ 3.4e+38 (default 0.1), got "x"',
]


def test_all_mistakes_of_a_search_are_listed_at_once(write: Write) -> None:
    search = """[search]
kind = "grid"
epochs = 1
holdout = 0.9
per = ["train.batch_size", "attack", "attack"]
seeds = [1, 2, 1]
[search.values]
"train.lr" = [0.1]
train.optimizer.l = [0.1]
"train.epochs" = [1, 2]
"data.limit" = []
"train.local_steps" = [1, 1]
"validation.rule" = [{ kind = "average" }]
"train.optimizer.lr" = { low = 0.1, high = 1.0 }
"""
    assert mistakes(write(search, RULES)) == [
        "search.per[0]: train.batch_size is not swept; the swept keys are: validation.rule",
        "search.per[1]: attack is not swept; the swept keys are: validation.rule",
        "search.per[2]: attack is not swept; the swept keys are: validation.rule",
        'search.per[2]: "attack" is listed twice',
        "search.seeds[2]: 1 is listed twice",
        "search.values.train.lr: unknown key train.lr: did you mean train.optimizer.lr?",
        "search.values.train.optimizer.l: unknown key train.optimizer.l: did you mean train.optimizer.lr?",
        "search.values.train.epochs: train.epochs cannot be searched: `epochs` of [search] sets it",
        "search.values.data.limit: expects a list of values to try, got []",
        "search.values.train.local_steps: 1 is listed twice",
        "search.values.validation.rule: validation.rule is swept too: search it, or sweep it",
        "search.values.train.optimizer.lr: a grid has lists of values; "
        'a range is for kind = "random", "halving" or "tpe"',
    ]
    wrong = GRID.replace("epochs = 1", "epochs = 1\nholdout = 0.9").replace("0.1,", '-0.1, "x",')
    assert mistakes(write(wrong)) == MISTAKES_OF_RUNS
    unknown = mistakes(write(GRID.replace("epochs", "epoch")))
    assert any("unknown key: did you mean epochs?" in mistake for mistake in unknown)
    (kind,) = mistakes(write(GRID.replace("grid", "gird")))
    assert 'unknown search "gird": did you mean "grid"?' in kind


# The best configuration.


def group_of(write: Write, search: str = GRID, tables: str = "") -> SearchGroup:
    (group,) = load_experiment(write(search, tables)).search
    return group


def order(group: SearchGroup, results: list[list[tuple[float, float, str]]]) -> list[ConfigurationScore]:
    """Return the configurations in their order, given accuracy, loss and the reason of loss of each run."""
    scores = {
        point.run_id: RunScore(point.run_id, *result)
        for each, of_runs in zip(group.configurations, results, strict=True)
        for point, result in zip(each.rungs[0], of_runs, strict=True)
    }
    return ranked(group, range(len(results)), 0, scores)


def places(found: list[ConfigurationScore]) -> list[int]:
    return [score.place for score in found]


def test_diverged_and_failed_runs_lose_and_ties_are_decided(write: Write) -> None:
    group = group_of(write)
    lost = (0.99, 0.01, "diverged")
    assert places(order(group, [[lost], [(0.1, 9.0, "")], [(math.nan, math.nan, "failed")]])) == [1, 0, 2]
    assert places(order(group, [[(0.5, 2.0, "")], [(0.5, 1.0, "")], [(0.4, 0.1, "")]])) == [1, 0, 2]
    assert places(order(group, [[(0.5, 1.0, "")]] * 3)) == [0, 1, 2]
    by_loss = group_of(write, GRID.replace("epochs = 1", 'epochs = 1\nscore = "loss"'))
    assert places(order(by_loss, [[(0.5, 2.0, "")], [(0.5, 1.0, "")], [(0.4, 0.1, "")]])) == [2, 1, 0]
    assert not order(group, [[lost]] * 3)[0].has_score


@pytest.mark.filterwarnings("error")
def test_a_search_whose_runs_are_all_lost_says_so(write: Write) -> None:
    more = '"train.batch_size" = [4, 8]\n"train.optimizer.momentum" = [0.0, 0.5]\n'
    file = write(GRID.replace("[0.01, 0.1, 1.0]", "[1e30, 1e31]") + more)
    results = file.parent / "results"
    (group,) = load_experiment(file, results=results).search
    lost = order(group, [[(0.99, 0.01, "diverged")]] * 8)
    with pytest.raises(RunError, match="no values are chosen, because all runs diverged or failed"):
        conclude([group], [lost], file, [])
    assert not group.result.exists()
    why = "has no result, because all of its runs diverged or failed: change its values, and execute `hpcps search"
    with pytest.raises(SpecError, match=why):
        load_experiment(file, results=results).check_searched()
    figure = draw("lr", [(group, lost)])
    write_files([("search", figure)], results)  # a layout that fails warns
    assert figure.axes[0].get_ylim() == (0, 100)
    conclude([group], [order(group, [[(0.9, 0.1, "")]] * 8)], file, [])
    load_experiment(file, results=results).check_searched()
    assert not group.without_result.exists()


def test_points_count_by_the_worst_or_the_mean_and_seeds_by_their_mean(write: Write) -> None:
    seeds = GRID.replace("epochs = 1", "epochs = 1\nseeds = [1, 2]")
    # The first has attacks none (0.9, 0.7) and negative (0.1, 0.3), the second is even.
    results = [
        [(0.9, 1.0, ""), (0.7, 1.0, ""), (0.1, 4.0, ""), (0.3, 2.0, "")],
        [(0.4, 2.0, "")] * 4,
        [(0.3, 2.0, "")] * 4,
    ]
    worst = order(group_of(write, seeds, ATTACKS), results)
    assert [(score.place, round(score.accuracy, 6), score.loss) for score in worst] == [
        (1, 0.4, 2),
        (2, 0.3, 2),
        (0, 0.2, 3),
    ]
    # A configuration with a lost run comes last, even if its other runs are the best.
    results[1][3] = (0.99, 0.1, "failed")
    assert places(order(group_of(write, seeds, ATTACKS), results)) == [2, 0, 1]
    results[1][3] = (0.4, 2.0, "")
    mean = order(group_of(write, seeds.replace("seeds", 'over = "mean"\nseeds'), ATTACKS), results)
    assert [(score.place, round(score.accuracy, 6), score.loss) for score in mean] == [
        (0, 0.5, 2),
        (1, 0.4, 2),
        (2, 0.3, 2),
    ]


# Whole searches.


def command(file: Path, name: str, *arguments: str) -> int:
    return main([name, str(file), "--results", str(file.parent / "results"), *arguments])


@pytest.mark.thorough
def test_a_search_is_resumed_and_its_values_are_those_of_the_runs(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    search = GRID.replace("0.1, 1.0]", "1e30]").replace("epochs = 1", 'epochs = 1\nper = ["validation.rule"]')
    file = write(search, RULES, topology__workers=4, train__epochs=1)
    results = file.parent / "results"
    assert command(file, "run") == 2
    assert (
        "the [search] of train.optimizer.lr has no result yet for average; median: `hpcps search"
        in capsys.readouterr().err
    )
    assert command(file, "search", "--only", "average") == 0
    shown = capsys.readouterr()
    assert "lr.search: 2 runs of 1 epoch\n" in shown.out
    assert "1 diverged" in shown.out
    assert "hpcps: warning: a run of the search diverged or failed: configurations with fewer of them win" in shown.out
    assert (results / "lr.search/figures/search.png").stat().st_size > 10_000
    assert command(file, "run") == 2
    assert "has no result yet for median" in capsys.readouterr().err
    # The runs of the first search are not executed again.
    before = {path: path.stat().st_mtime_ns for path in results.glob("lr.search/runs/*/DONE")}
    assert command(file, "search") == 0
    assert "2 of 4 runs are done already" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    chosen = {}
    for path in results.glob("lr.search/chosen/*.json"):
        content = json.loads(path.read_text())
        chosen[content["per"]["validation.rule"]["kind"]] = content["values"]["train.optimizer.lr"]
    assert chosen.keys() == {"average", "median"}
    assert set(chosen.values()) == {0.01}
    assert command(file, "check") == 0
    assert f"average: train.optimizer.lr = {chosen['average']}" in capsys.readouterr().out
    assert command(file, "run") == 0
    for path in results.glob("lr/runs/*/spec.json"):
        spec = json.loads(path.read_text())
        rate = spec["run"]["train"]["optimizer"]["lr"]
        assert (
            rate == chosen[spec["run"]["validation"]["rule"]["kind"]] == spec["search"]["values"]["train.optimizer.lr"]
        )
        assert spec["run"]["data"]["holdout"] == 0
        assert {p.name for p in results.glob("lr.search/runs/*")} > set(spec["search"]["runs"])
        assert json.loads((path.parent / "provenance.json").read_text())["search"] == spec["search"]
    capsys.readouterr()
    assert main(["collect", "lr", "--results", str(results)]) == 0
    assert "train.optimizer.lr chosen by a search" in (results / "lr/final_accuracy.md").read_text()
    # A run with other values is that of another search.
    assert command(file, "run", "--set", "data.limit=120") == 2
    # A result that does not belong to the search is refused.
    for path in results.glob("lr.search/chosen/*.json"):
        path.write_text('{"values": {"train.optimizer.lr": 7}, "runs": []}')
    assert command(file, "run") == 2
    assert "not a result of this search: delete it, and search again" in capsys.readouterr().err


@pytest.mark.thorough
def test_runs_that_fail_do_not_win(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(GRID.replace("0.01, 0.1, 1.0", "0.1, 1e-6"))
    results = file.parent / "results"
    (group,) = load_experiment(file).search
    better, worse = (each.rungs[0][0] for each in group.configurations)
    assert score_runs(results / "lr.search", [better])[better.run_id].lost == "failed"
    obstacle = results / "lr.search/runs" / better.run_id / "final"
    obstacle.parent.mkdir(parents=True)
    obstacle.touch()  # the run cannot write its model
    assert command(file, "search") == 0
    assert "1 failed" in capsys.readouterr().out
    (chosen,) = results.glob("lr.search/chosen/*.json")
    assert json.loads(chosen.read_text())["runs"] == [worse.run_id]
    # Another search executes the run that failed again.
    obstacle.unlink()
    assert command(file, "search") == 0
    assert json.loads(chosen.read_text())["runs"] == [better.run_id]


def test_values_of_a_search_make_no_variant_unless_two_searches_chose_different_ones(write: Write) -> None:
    def run(rule: str, rate: float, *, searched: bool = True, seed: int = 1) -> dict[str, object]:
        content = load_experiment(write("", RULES), [f"train.optimizer.lr={rate}", f"seed={seed}"], only=[rule])
        spec = content.chosen[0].spec
        return spec | {"search": {"values": {"train.optimizer.lr": rate}}} if searched else spec

    average, median = run("average", 0.01), run("median", 0.1)
    assert variants([average, median]) == ["", ""]
    assert variants([average, median, run("average", 0.01, seed=2)]) == ["", "", ""]
    assert variants([average, median, run("median", 0.3, searched=False)]) == ["", "", "train.optimizer.lr=0.3"]
    earlier = variants([average, median, run("average", 0.03)])
    assert earlier[1] == ""
    assert len({earlier[0], earlier[2]}) == 2


@pytest.mark.thorough
def test_successive_halving_from_python(write: Write) -> None:
    search = GRID.replace('"grid"', '"halving"\nfactor = 2')
    file = write(search, transport__kind="mpi", topology__validators=0, train__epochs=3)
    results = file.parent / "results"
    searched = hpcps.search(file, results=results)
    (group,) = searched._loaded.search
    assert group.chosen is not None
    tried = [(each["rung"], len(each["runs"])) for each in group.chosen["tried"]]
    assert tried == [(1, 1)] * 2 + [(0, 1)] * 3
    assert len(list((results / "lr.search/runs").glob("*"))) == 5
    assert searched.points[0].run.train.optimizer.lr == group.chosen["values"]["train.optimizer.lr"]
    loaded: LoadedExperiment = hpcps.run(file, results=results)._loaded
    assert (results / "lr/runs" / loaded.points[0].run_id / "DONE").exists()
    assert loaded.points[0].run_id == searched.ids[0]


@pytest.mark.thorough
def test_the_learning_rates_of_ps_pytorch_are_compared_by_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its script does after 100 steps of each rate; the report names that of the lowest loss."""
    file = Path(__file__).parents[2] / "experiments/lr_search.toml"
    small = ["--set", "model.name=mlp", "--set", "data.limit=350", "--only", "sgd", "--results", str(tmp_path)]
    assert main(["search", str(file), *small]) == 0
    printed = capsys.readouterr().out
    rows = [[cell.strip(" *") for cell in line.split("|")] for line in printed.splitlines() if line.startswith("| ")]
    losses = {float(row[1]): float(row[3]) for row in rows[1:]}
    assert [*sorted(losses)] == [2.0**power for power in range(-7, 0)]
    assert next(iter(losses)) == min(losses, key=lambda rate: losses[rate])
    (chosen,) = tmp_path.glob("lr_search.search/chosen/*.json")
    assert json.loads(chosen.read_text())["values"] == {"train.optimizer.lr": next(iter(losses))}
