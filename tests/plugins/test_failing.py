"""What is wrong with the code of a data set, a model or a split is one error before anything starts."""
# ruff: noqa: E501 (a case is a line)

import shutil

import pytest
from typed import ROOT, as_typed

from hpcps.cli.main import main

DATA = "data set my_data (plugin my_data.py): "
MODEL = "model my_model (plugin my_model.py): "
SPLIT = "split my_split (plugin my_split.py): "
FACTS = "Facts(shape=(20,), classes=4, train=1200, test=400)"
RETURN = "return InMemory(samples.take(slice(0, 1200))), InMemory(samples.take(slice(1200, None)))"
NETWORK = "        return network"
LOSS = "partial(multi_margin_loss, margin=self.margin)"
PLACES = "return order.reshape(dealing.shards, dealing.size)"
WRONG = {
    "open raises": (RETURN, "raise KeyError('gone')", "data set my_data (plugin my_data.py, line LINE): its open() failed: KeyError: 'gone'"),
    "a file is missing": (RETURN, "return open('nothing')", "data set my_data (plugin my_data.py, line LINE): its open() failed: FileNotFoundError: "),
    "one part": (RETURN, "return InMemory(samples)", DATA + "its open() returned a InMemory: it must return two parts"),
    "three parts": (RETURN, "return [InMemory(samples)] * 3", DATA + "its open() returned a list of 3: it must return two"),
    "no parts": (RETURN, "return samples, samples", DATA + "its open() returned a tuple of 2: it must return two parts"),
    "nothing": (RETURN, "pass", DATA + "its open() returned None: it must return two parts"),
    "labels": (RETURN, "samples.labels[3] = 4; " + RETURN, DATA + "training part: its labels go from 0 to 4, and by the facts there are 4 classes: they must be from 0 to 3"),
    "labels of the test": (RETURN, "samples.labels[-1] = -1; " + RETURN, DATA + "test part: its labels go from -1 to 3, and"),
    "float labels": ("astype(np.float32), labels)", "astype(np.float32), labels / 1)", DATA + "training part: its labels are an array [1200] of float64: they must be an array [n] of int64"),
    "training size": (FACTS, FACTS.replace("1200", "1100"), DATA + "training part: it has 1200 labels for 1100 samples"),
    "test size": (FACTS, FACTS.replace("400", "500"), DATA + "test part: it has 400 labels for 500 samples"),
    "shape": (FACTS, FACTS.replace("20", "21", 1), DATA + "training part: 2 of its samples are an array [2, 20], and by the facts it should be [2, 21]"),
    "type": (".astype(np.float32)", "", DATA + "training part: its samples are an array [2, 20] of float64: they must be an array of uint8 or float32"),
    "facts": (FACTS, "Facts(shape=20, train=0, test=1)", "own_data.toml:15: data: " + DATA + "its facts are wrong: train is 0: it must be a whole number ≥ 1; shape is 20: it must be a tuple"),
    "mean": (FACTS, FACTS.replace("test", "mean=(1, 2), std=(0,), test"), DATA + "its facts are wrong: mean is (1, 2): it must be a tuple of 1 or 20 numbers; std is (0,): it must be a tuple of 1 or 20 numbers above 0"),
    "augment": (FACTS, FACTS.replace("test", "augment=True, test"), DATA + "its facts are wrong: augment is for images"),
    "no facts": (f"    facts = {FACTS}\n", "", DATA + "its facts are not known: AttributeError: "),
    "other facts": (FACTS, "3", DATA + "its facts are 3: they must be hpcps.data.Facts(...)"),
    "facts that fail": (f"facts = {FACTS}", "facts = property(lambda self: 1 / 0)", "data set my_data (plugin my_data.py, line LINE): its facts are not known: ZeroDivisionError"),
    "build raises": (NETWORK, "        raise KeyError('gone')", "model my_model (plugin my_model.py, line LINE): its build() failed for samples [20]: KeyError: 'gone'"),
    "no network": (NETWORK, "        return None", MODEL + "its build() returned a NoneType: it must return a torch.nn.Module"),
    "half": (NETWORK, "        return network.half()", MODEL + "parameters that are not float32: 0.weight (float16), 0.bias (float16), 1.weight (float16) and 3 more; make"),
    "double": (NETWORK, "        network[1].double()\n        return network", MODEL + "parameters that are not float32: 1.weight (float64), 1.bias (float64); make"),
    "nothing to train": (NETWORK, "        return nn.Flatten()", MODEL + "its network has no parameters"),
    "classes": ("self.width, classes", "self.width, classes + 1", MODEL + "its network returns a tensor [2, 5] for samples [2, 20]: the output must be [b, classes], here [2, 4]"),
    "a vector": (NETWORK, "        return nn.Sequential(network, nn.Flatten(0))", MODEL + "its network returns a tensor [8] for samples [2, 20]"),
    "a tuple": (NETWORK, "        return nn.LSTM(20, 4)", MODEL + "its network returns a tuple for samples [2, 20]"),
    "inputs": ("nn.Linear(*shape", "nn.Linear(7", MODEL + "its network does not take samples [2, 20]: RuntimeError: mat1 and mat2"),
    "loss": (LOSS, "lambda outputs: 0", MODEL + "its loss(outputs, labels) failed: TypeError: "),
    "a number": (LOSS, "lambda outputs, labels: 0.0", MODEL + "its loss(outputs, labels) returned a float: it must be the mean loss"),
    "losses": (LOSS, "lambda outputs, labels: outputs.sum(1)", MODEL + "its loss(outputs, labels) returned a tensor [2]"),
    "no gradient": (LOSS, "lambda outputs, labels: outputs.detach().sum()", MODEL + "its loss(outputs, labels) returned a tensor []: it must be"),
    "deal raises": (PLACES, "return [][0]", "split my_split (plugin my_split.py, line LINE): its deal() failed: IndexError: list index"),
    "no array": (PLACES, "return order.tolist()", SPLIT + "its deal() returned a list, or places twice: it must return an array [3, 300] of"),
    "shards": (PLACES, PLACES + ".T", SPLIT + "its deal() returned an array [300, 3], or places twice"),
    "twice": (PLACES, "order[0] = order[1]; " + PLACES, SPLIT + "its deal() returned an array [3, 300], or places twice"),
    "outside": (PLACES, "order[0] = 900; " + PLACES, SPLIT + "its deal() returned places from 0 to 900: they must be from 0 to 899"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(ROOT / "examples/plugins", tmp_path / "examples", ignore=ignored)


def broken(folder, case):
    there, instead, expected = WRONG[case]
    (path,) = (path for path in folder.glob("my_*.py") if there in path.read_text() and path.stem in MINE)
    text = path.read_text()
    assert text.count(there) == 1
    path.write_text(text.replace(there, instead))
    return expected.replace("LINE", str(text.partition(there.strip())[0].count("\n") + 1))


MINE = ("my_model", "my_data", "my_split")


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", WRONG)
def test_it_is_one_error_that_names_the_component(folder, case, capsys):
    expected = broken(folder, case)
    assert main(["check", str(folder / "own_data.toml")]) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert said.err.startswith("hpcps: ")
    assert not said.out


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("case", ["open raises", "a vector", "twice"])
def test_as_typed_it_has_no_traceback(folder, case):
    expected = broken(folder, case)
    said = as_typed("run", folder / "own_data.toml", "--results", folder / "results", expect=2)
    assert expected in said
    assert not list(folder.glob("results/*/runs"))


def test_built_in_models_are_tried_with_data_of_ones_own(folder, capsys):
    for model, expected in (
        ("cnn", "cnn is for images of at least 4 by 4, but samples of my_data have the shape [20]"),
        ("cifar_resnet20_v1", "cifar_resnet20_v1 is for images of 3 channels"),
    ):
        assert main(["check", str(folder / "own_data.toml"), "--set", f'model={{ name = "{model}" }}']) == 2
        assert expected in capsys.readouterr().err
