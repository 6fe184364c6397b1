"""The examples of own scripts, in processes that are forked as in `forked`."""

import runpy
import sys
from pathlib import Path

import pytest
from forked import fork
from launched_scripts import launched

pytest.importorskip("torch._dynamo")
pytest.importorskip("sklearn.datasets")
FOLDER = Path(__file__).resolve().parents[2] / "examples/own_script"


@pytest.mark.thorough
def test_the_programs_of_byteps_and_horovod(capfd):
    def body():
        sys.path[:0] = [str(FOLDER)]
        options = ["--num-iters", "1", "--num-batches-per-iter", "1", "--batch-size", "2", "--width", "4"]
        for name, own in (("synthetic_benchmark.py", options), ("mnist.py", ["--epochs", "6"])):
            sys.argv = [name, *own, "--fp16-pushpull"]
            runpy.run_path(str(FOLDER / name), run_name="__main__")

    fork(2, body)
    printed = capfd.readouterr().out
    assert "images/s of 2 processes" in printed
    assert float(printed.split("accuracy ")[1]) > 0.8, printed


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "rule"), [("digits.py", []), ("digits_ddp.py", ["--rule", "median"])])
def test_an_example_learns_the_digits(name, rule, capfd):
    def body():
        sys.argv, sys.path[:0] = [name, "--epochs", "4", *rule], [str(FOLDER)]
        runpy.run_path(str(FOLDER / name), run_name="__main__")

    fork(3, body)
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("3 processes: accuracy 0.9")


@pytest.mark.thorough
@pytest.mark.usefixtures("starts_processes")
def test_an_example_goes_on_with_other_numbers_of_processes(tmp_path):
    words = "--epochs", "3", "--workers", "1", "2", "1"
    options = "--transport", "pslite", "--survive"
    text = launched(tmp_path, FOLDER / "resizing.py", *words, processes=1, options=options)
    assert [line.partition(",")[0] for line in text.splitlines() if line.startswith("epoch")] == [
        "epoch 1: 1 processes",
        "epoch 2: 2 processes",
        "epoch 3: 1 processes",
    ]
