"""Experiments from a file, a text or a dictionary, run in this process, and their results."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small import small

import hpcps
from hpcps.cli.main import main
from hpcps.figures.publish import write_tables
from hpcps.registry import active, installed, using

ROOT = Path(__file__).parents[2]
TEXT = """
name = "small"
[topology]
workers = 3
[model]
name = "mlp"
[data]
name = "digits"
limit = 480
test_limit = 60
[train]
epochs = 2
batch_size = 16
local_steps = 3
device = "cpu"
[[sweep]]
"validation.rule" = [{ kind = "average" }, { kind = "zeno" }]
"""
SWEEP = [{"validation.rule": [hpcps.rules.Average(), hpcps.rules.Zeno()]}]
RULES = ("average", "zeno")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of both runs of the text, for all tests of this module."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def ran(results: Path) -> hpcps.Experiment:
    return hpcps.run(TEXT, results=results)


def test_a_file_a_text_and_a_dictionary_are_the_same_runs(tmp_path):
    (tmp_path / "small.toml").write_text(TEXT)
    from_file = hpcps.load("small.toml")
    assert from_file.ids == hpcps.load(tmp_path / "small.toml").ids == hpcps.load(TEXT).ids
    described = small(sweep=SWEEP, communication={"skip_rate": 0.0}, transport={"kind": "mpi"}, validation={})
    described["train"]["optimizer"] = {}
    described["validation"] = {}
    assert hpcps.load(described).ids == from_file.ids
    assert from_file.name == "small"
    assert from_file.labels == RULES
    assert len(from_file) == 2
    assert repr(from_file).splitlines()[0] == "small: 2 points"


def test_keys_set_and_only():
    values = {"train.epochs": 5, "train.optimizer.lr": np.float32(0.25), "attack": hpcps.attacks.Negative(scale=3)}
    experiment = hpcps.load(TEXT, set=values, only="zeno")
    assert experiment.labels == ("zeno",)
    keys = experiment.keys.loc[experiment.ids[0]]
    assert (keys["train.epochs"], keys["train.optimizer.lr"], keys["attack.scale"]) == (5, 0.25, 3)
    assert keys["validation.rule.kind"] == "zeno"


@pytest.mark.thorough
def test_selectors_narrow_each_other():
    experiment = hpcps.load(TEXT, only=["average,zeno", "1"])
    assert experiment.labels == ("zeno",)
    narrowed = hpcps.load(TEXT, only="zeno,average")
    assert hpcps.run(narrowed, only=["zeno", "0-1"], set={"train.epochs": 1}, results="results").labels == ("zeno",)
    with pytest.raises(hpcps.SpecError, match="no point matches all of these"):
        hpcps.run(experiment, only="average")


def test_errors_are_those_of_the_file(tmp_path, capsys):
    text = TEXT.replace("workers = 3", "workrs = 3").replace("epochs = 2", "epochs = 0")
    (tmp_path / "small.toml").write_text(text)
    assert main(["check", "small.toml"]) == 2
    with pytest.raises(hpcps.SpecError) as error:
        hpcps.check("small.toml")
    assert capsys.readouterr().err == f"hpcps: {error.value}\n"
    with pytest.raises(hpcps.SpecError) as error:
        hpcps.load(text)
    assert "<text>:4: topology.workrs: unknown key: did you mean workers?" in str(error.value)
    with pytest.raises(hpcps.SpecError) as error:
        hpcps.load(small(topology={"workrs": 3}))
    assert "\n  topology.workrs: unknown key" in str(error.value)
    assert error.value._render_traceback_() == [f"SpecError: {error.value}"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"experiment": "none.toml"}, "none.toml: there is no such file"),
        ({"experiment": 3}, "expects a file, the text of one, or a dictionary; got an int"),
        ({"experiment": TEXT, "only": "phocas"}, 'no point matches "phocas"'),
        ({"experiment": TEXT, "only": 0}, 'only: expects a text such as "0" or "zeno", or a list of texts, got an int'),
        ({"experiment": TEXT, "only": ["zeno", 1]}, "or a list of texts, got a list"),
        ({"experiment": TEXT, "only": ""}, "has no terms"),
        ({"experiment": TEXT, "set": {"train.epoch": 3}}, "--set train.epoch=3: train.epoch: unknown key"),
        ({"experiment": TEXT, "set": ["train.epochs=3"]}, "set: expects a dictionary"),
        ({"experiment": TEXT, "set": {"seed": None}}, "seed: got None; leave the key out"),
        ({"experiment": {"name": "x", "data": {"limit": object()}}}, "data.limit: got an object; expects a number"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(hpcps.SpecError) as error:
        hpcps.load(**arguments)
    assert words in str(error.value)


def test_plugins_and_data_start_from_the_file(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(ROOT / "examples/plugins", folder)
    (folder / "files").mkdir()
    experiment = hpcps.load("mine/experiment.toml", set={"data.dir": "files"}).check()
    assert experiment.labels == ("average", "clipped_mean")
    assert {point.run.data.dir for point in experiment.points} == {str(folder / "files")}
    assert hpcps.load("mine/experiment.toml", set={"data.dir": "none"}).points[0].run.data.dir == "none"
    # The plugins of an experiment are for that experiment only.
    assert "clipped_mean" not in hpcps.registry.rules
    with pytest.raises(hpcps.SpecError, match=r"my_rule\.py: there is no such file"):
        hpcps.load((folder / "experiment.toml").read_text())
    done = hpcps.run(experiment, only="clipped", set={"train.epochs": 1}, results="results")
    assert done.labels == ("clipped_mean",)
    assert np.isfinite(done.final_model(done.ids[0])).all()


def test_a_run_in_this_process_is_the_run_of_the_command_line(ran, results, tmp_path, capfd):
    (tmp_path / "small.toml").write_text(TEXT)
    others = tmp_path / "others"
    assert main(["run", "small.toml", "--set", "transport.kind=inproc", "--results", str(others)]) == 0
    here = hpcps.load("small.toml", set={"transport.kind": "inproc"}, results=others)
    assert here.ids == ran.ids != hpcps.load(TEXT).ids
    for run_id in ran.ids:
        np.testing.assert_array_equal(ran.final_model(run_id), here.final_model(run_id))
    # What the library has done, the command line skips, and the other way round.
    capfd.readouterr()
    main(["run", "small.toml", "--set", "transport.kind=inproc", "--results", str(results)])
    assert "2 of 2 runs are done already" in capfd.readouterr().out
    before = (others / "small/runs" / ran.ids[0] / "DONE").stat().st_mtime_ns
    hpcps.run("small.toml", results=others)
    assert (others / "small/runs" / ran.ids[0] / "DONE").stat().st_mtime_ns == before


@pytest.mark.thorough
def test_results_are_what_collect_writes(ran, results, monkeypatch, capsys):
    assert main(["collect", str(results / "small")]) == 0
    written = pd.read_parquet(results / "small/table.parquet")
    assert list(hpcps.results(results / "small").columns) == list(written.columns)
    assert list(ran.table().columns) == list(written.columns)
    assert len(ran.table()) == len(written)
    evaluations = ran.table(events=["evaluation"])
    assert list(evaluations.groupby("label", observed=True).size()) == [2, 2]
    monkeypatch.chdir(results)
    monkeypatch.setenv("HPCPS_RESULTS", str(results))
    assert len(hpcps.results("smal", events=["evaluation"])) == 4
    with using(installed()):
        inside = active()
        hpcps.results("smal")
        ran.table()
        assert active() is inside, "what is read does not change the registry"
    with pytest.raises(hpcps.RunError, match=r"no record has the event evaluations"):
        ran.table(events=["evaluations"])
    with pytest.raises(hpcps.RunError, match="no experiment 'smol'"):
        hpcps.results("smol")


@pytest.mark.thorough
def test_a_published_table_stands_for_runs_of_another_machine(ran, tmp_path):
    copy = tmp_path / "results/published/small"
    copy.mkdir(parents=True)
    write_tables(ran.table(), copy)
    assert len(hpcps.results("small")) == len(ran.table())
    assert set(hpcps.results("small", events=["evaluation"])["event"]) == {"evaluation"}


def test_what_has_not_run_says_so(ran):
    experiment = hpcps.load(small(seed=7))
    with pytest.raises(hpcps.RunError, match="run the experiment first"):
        experiment.table()
    with pytest.raises(hpcps.RunError, match="is not done: run the experiment first"):
        experiment.final_model(experiment.ids[0])
    with pytest.raises(hpcps.SpecError, match="small has no run 'x'"):
        ran.final_model("x")


def test_missing_data_are_one_error(tmp_path):
    with pytest.raises(hpcps.DataError, match="no cifar10 in"):
        hpcps.run(small(data={"name": "cifar10", "dir": "none"}, model={"name": "cnn"}))
    assert not (tmp_path / "results/small/runs").exists()


@pytest.mark.usefixtures("starts_processes")
def test_the_processes_of_a_launch(tmp_path):
    """`hpcps run` starts them; here it runs them in one process, which is faster and shows the same."""
    (tmp_path / "small.toml").write_text(TEXT.replace("[model]", '[transport]\nkind = "inproc"\n[model]'))
    done = hpcps.run("small.toml", in_process=False, only="average", set={"train.epochs": 1})
    assert done.final_model(done.ids[0]).size
    with pytest.raises(hpcps.RunError, match="cannot write to the results folder"):
        hpcps.run("small.toml", in_process=False, results="small.toml")
    with pytest.raises(hpcps.LaunchError, match="needs an experiment file"):
        hpcps.run(TEXT, in_process=False)
    with pytest.raises(hpcps.LaunchError, match="leave them out, or in_process=False"):
        hpcps.run("small.toml", in_process=False, callbacks=hpcps.Callbacks(on_round=print))


@pytest.mark.parametrize(
    "key", [{"train.local_steps": {"kind": "esync"}}, {"heterogeneity.slow": {"workers": [1], "factor": 2}}]
)
def test_what_takes_real_time_needs_processes(key):
    with pytest.raises(hpcps.SpecError, match=r"in one process computation takes no time(.|\n)*in_process=False exe"):
        hpcps.run(TEXT, set=key)
