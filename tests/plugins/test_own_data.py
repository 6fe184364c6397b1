"""A model, a data set and a split of one's own (`examples/plugins`): they train, and their keys are like others."""

import shutil

import pytest
import torch
from typed import ROOT

from hpcps.cli.main import main
from hpcps.registry.plugins import load
from hpcps.spec.load import load_experiment

EXAMPLES = ROOT / "examples/plugins"
FILES = ("my_model.py", "my_data.py", "my_split.py")


@pytest.fixture
def file(tmp_path):
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "own_data.toml"


def component(name):
    (entry,) = load((EXAMPLES / name).read_text(), EXAMPLES / name).entries
    return entry.component


@pytest.mark.parametrize(
    ("kind", "name", "page"),
    [
        ("models", "my_model", "model my_model (plugin my_model.py)\n\nOne hidden layer with LayerNorm"),
        ("datasets", "my_data", "data set my_data (plugin my_data.py)\n\nPoints in 20 dimensions"),
        ("splits", "my_split", "split my_split (plugin my_split.py)\n\nA share of the samples is sorted"),
    ],
)
def test_each_has_a_page(file, kind, name, page, capsys):
    keys = {
        "models": "[model]:\n  backend: ",
        "datasets": "[data]:\n  dir: ",
        "splits": "[data.split]:\n  share: Share of the samples that is sorted. (a number from 0 to 1; default 0.5)",
    }
    assert main(["components", kind, name, "--file", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(page)
    assert f"keys of {keys[kind]}" in said
    assert "  width: Width of the hidden layer. (a whole number from 1 to 4096; default 32)" in said or kind != "models"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("there", "instead", "line", "expected"),
    [
        ('name = "my_model"', 'name = "my_model"\nwidht = 3', 14, "model.widht: unknown key: did you mean width?"),
        ('name = "my_model"', 'name = "my_model"\nmargin = 0', 14, "model.margin: expects a number > 0 (default 1.0)"),
        ("[16, 64]", "[16, 0]", 26, "model.width: expects a whole number from 1 to 4096 (default 32), got 0"),
        ("noise = 1.5", "nois = 1.5", 17, "data.nois: unknown key: did you mean noise?"),
        ("noise = 1.5", "augment = true", 17, "data.augment: only for cifar10, cifar100, not my_data: leave it out"),
        ("share = 0.2 }", "share = 2 }", 18, "data.split.share: expects a number from 0 to 1 (default 0.5), got 2"),
        ("[0.2, 0.8]", "[0.2, -1]", 29, "data.split.share: expects a number from 0 to 1 (default 0.5), got -1"),
    ],
)
def test_a_mistake_in_its_keys_is_told_with_its_line(file, there, instead, line, expected, capsys):
    text = file.read_text()
    assert text.count(there) == 1
    file.write_text(text.replace(there, instead))
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hpcps: {file}: 1 mistake\n")
    assert f"{file}:{line}: {expected}" in said


def ids(file):
    return {point.label: point.run_id for point in load_experiment(file).points}


@pytest.mark.parametrize("name", FILES)
def test_a_run_id_has_the_text(file, name):
    before = ids(file)
    (file.parent / name).write_text((file.parent / name).read_text() + "\n# changed\n")
    after = ids(file)
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def test_the_labels_of_a_changed_data_set_are_read_anew(file):
    lacking = "3 of 3 workers lack classes; worker 0 has 1 of 4"
    assert lacking not in "\n".join(load_experiment(file).warnings)
    path = file.parent / "my_data.py"
    path.write_text(path.read_text().replace("integers(0, 4, 1600)", "integers(0, 1, 1600)"))
    assert lacking in "\n".join(load_experiment(file).warnings)


def test_the_model_is_trained_on_its_own_loss():
    network = component("my_model.py")(margin=0.5).build((20,), 4)
    outputs = torch.tensor([[1.0, 0.75, 0.0, 0.0]])
    assert float(network.loss(outputs, torch.tensor([0]))) == pytest.approx((0.5 - 0.25) / 4)
