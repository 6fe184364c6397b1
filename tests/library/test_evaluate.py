"""Models of finished runs and of files are evaluated as their run evaluated them, and by class."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from small import small
from small_experiment import small_experiment

import hpcps
from hpcps.cli.main import main
from hpcps.errors import RunError

PLUGIN = '''
from typing import Literal
from hpcps.models import Model

class Line(Model):
    """One linear layer and BatchNorm."""

    name: Literal["line"] = "line"

    def build(self, shape, classes):
        from math import prod
        from torch import nn
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(prod(shape)), nn.Linear(prod(shape), classes))
'''


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> hpcps.Experiment:
    """Two runs, of a network of a plugin with BatchNorm."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "line.py").write_text(PLUGIN)
    table = small(model={"name": "line"}, topology={"workers": 3, "validators": 1}, plugins=[str(folder / "line.py")])
    table["sweep"] = [{"seed": [1, 2]}]
    return hpcps.run(table, results=folder / "results")


def last_evaluation(experiment: hpcps.Experiment, run_id: str) -> dict[str, float]:
    rows = experiment.table(events=["evaluation"])
    return dict(rows[rows["run_id"] == run_id].iloc[-1])


def test_a_finished_run_is_evaluated_as_it_was_at_its_end(ran, capsys):
    assert main(["evaluate", str(ran.results / ran.name)]) == 0
    shown = capsys.readouterr().out.splitlines()
    for run_id, line in zip(ran.ids, shown[1:], strict=True):
        expected = last_evaluation(ran, run_id)
        content = json.loads((ran.results / ran.name / "runs" / run_id / "evaluation.json").read_text())
        assert (content["accuracy"], content["samples"]) == (expected["accuracy"], expected["samples"])
        assert content["loss"] == expected["loss"]
        confusion = np.array(content["confusion"])
        assert confusion.shape == (10, 11)
        assert confusion.sum() == content["samples"]
        assert np.trace(confusion) == round(content["accuracy"] * content["samples"])
        assert content["accuracy"] < content["top5"] <= 1
        assert content["by_class"] == (np.diagonal(confusion) / confusion.sum(axis=1)).tolist()
        assert line.startswith(f"{run_id}  {ran.labels[ran.ids.index(run_id)]}")
        assert f"{100 * content['accuracy']:.2f} %" in line


def test_a_run_is_chosen_by_its_id_and_a_model_of_a_file_is_evaluated_with_its_settings(ran, tmp_path, capsys):
    first, second = ran.ids
    file = tmp_path / "mine.npy"
    np.save(file, ran.final_model(second))
    command = ["evaluate", first, "--model", str(file), "-o", str(tmp_path / "mine.json"), "--results"]
    assert main([*command, str(ran.results)]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith(str(file))
    assert json.loads((tmp_path / "mine.json").read_text())["accuracy"] == ran.evaluate(first, np.load(file)).accuracy
    assert ran.evaluate(second).accuracy == last_evaluation(ran, second)["accuracy"]


def test_a_model_whose_outputs_are_not_finite_is_right_nowhere(ran, tmp_path, capsys):
    evaluation = ran.evaluate(ran.ids[0], np.full_like(ran.final_model(ran.ids[0]), np.nan))
    assert (evaluation.accuracy, evaluation.top5, evaluation.finite) == (0, 0, False)
    assert math.isinf(evaluation.loss)
    assert sum(row[-1] for row in evaluation.confusion) == evaluation.samples
    assert set(evaluation.by_class) == {0}
    file = tmp_path / "nan.npy"
    np.save(file, np.full_like(ran.final_model(ran.ids[0]), np.nan))
    assert main(["evaluate", ran.ids[0], "--model", str(file), "--results", str(ran.results)]) == 0
    said = f"{file}: outputs of {evaluation.samples} samples are not finite; these samples count as wrong\n"
    assert capsys.readouterr().out.endswith(f"hpcps: warning: {said}")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            np.zeros(7, np.float32),
            r"of the shape \[7\], and line on digits has 778 parameters: give the file of a whole",
        ),
        (np.zeros(778), "expects an array of float32"),
        (b"text", r"not an array of numbers, as numpy writes it into a \.npy file$"),
        (np.array([{}]), r"not an array of numbers, as numpy writes it into a \.npy file$"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_model_of_the_run_is_refused(ran, tmp_path, capsys, values, message):
    file = tmp_path / "mine.npy"
    if isinstance(values, bytes):
        file.write_bytes(values)
    elif values is not None:
        np.save(file, values)
    assert main(["evaluate", ran.ids[0], "--model", str(file), "--results", str(ran.results)]) == 2
    captured = capsys.readouterr().err
    assert "Traceback" not in captured
    with pytest.raises(RunError, match=message):
        raise RunError(captured)


def test_what_cannot_be_evaluated_says_why(ran, tmp_path, capsys):
    place = str(ran.results / ran.name)
    assert main(["evaluate", place, "--model", "x.npy"]) == 2
    assert "--model needs one run, and 2 are selected" in capsys.readouterr().err
    assert main(["evaluate", place, "-o", "x.json"]) == 2
    assert "-o is the file for the evaluation of --model" in capsys.readouterr().err
    unfinished = tmp_path / "results" / "other"
    (unfinished / "runs" / "0123456789").mkdir(parents=True)
    spec = Path(place, "runs", ran.ids[0], "spec.json").read_text()
    (unfinished / "runs" / "0123456789" / "spec.json").write_text(spec)
    assert main(["evaluate", str(unfinished)]) == 2
    assert "no run of" in capsys.readouterr().err


def test_settings_of_another_version_are_refused_with_a_way_out(ran, tmp_path, capsys):
    folder = tmp_path / "results" / "other" / "runs" / "0123456789"
    folder.mkdir(parents=True)
    spec = json.loads((ran.results / ran.name / "runs" / ran.ids[0] / "spec.json").read_text())
    spec["run"]["train"]["epochs"] = "many"
    (folder / "spec.json").write_text(json.dumps(spec))
    shutil.copytree(ran.results / ran.name / "runs" / ran.ids[0] / "plugins", folder / "plugins")
    np.save(tmp_path / "mine.npy", ran.final_model(ran.ids[0]))
    assert main(["evaluate", str(tmp_path / "results" / "other"), "--model", str(tmp_path / "mine.npy")]) == 2
    assert "cannot read its settings (train.epochs): evaluate it with the version" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_job_evaluates_as_many_models_as_fit_and_the_next_one_the_rest(tmp_path, capsys):
    file = tmp_path / "jobs.toml"
    file.write_text(small_experiment("jobs", tables="[[sweep]]\nseed = [1, 2, 3]\n"))
    assert main(["run", str(file), "--results", str(tmp_path)]) == 0
    evaluate = ["evaluate", str(tmp_path / "jobs"), "--walltime", "0"]
    for left in (2, 1):  # a job makes progress, however short it is
        assert main(evaluate) == 75
        assert f"{left} model{'s are' if left > 1 else ' is'} left: run the command again" in capsys.readouterr().out
        assert len([*tmp_path.glob("jobs/runs/*/evaluation.json")]) == 3 - left
    assert [main(evaluate), main(evaluate)] == [0, 0]
