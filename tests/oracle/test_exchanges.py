"""experiments/exchanges.toml, made smaller: the three exchanges learn the same, and every command takes their runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcps.cli.main import main
from hpcps.figures.from_table import figure_data_of
from hpcps.records.collect import collect

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "experiments/exchanges.toml"
EPOCHS = ("--set", "train.epochs=3", "--set", "train.lr_decay.epochs=[2]")
SMALLER = (*EPOCHS, "--set", "transport.kind=inproc")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", str(EXPERIMENT), "--results", str(folder), *SMALLER]) == 0
    return folder


def models(folder):
    """Return the final models by exchange."""
    runs = {json.loads((path / "spec.json").read_text())["swept"]["train.exchange"]: path for path in folder.iterdir()}
    return {name: np.load(next((path / "final").glob("*.npy"))) for name, path in runs.items()}


def test_they_learn_the_same(results):
    found = models(results / "exchanges/runs")
    assert not np.array_equal(found["ring"], found["servers"]), "its sums are float32, in another order"
    for name in ("ring", "allreduce"):
        np.testing.assert_allclose(found[name], found["servers"], atol=1e-4)


def test_they_are_three_lines_of_one_panel_with_their_own_bytes(results):
    table = collect(results / "exchanges").table
    (data,) = figure_data_of(table)
    assert data.lines == ("servers", "ring", "allreduce")
    assert list(data.panels) == [""]
    last = table[table["epoch"] == 3].dropna(subset=["bytes_sent_total"]).set_index("train.exchange")
    size, rounds = models(results / "exchanges/runs")["ring"].nbytes, int(last["round"].max())
    assert last["accuracy"].min() > 0.7
    # All but headers: the initial weights three times; in each round 4 x 2 x 3/4 of the model, or 4 x 2 x it.
    for name, share in (("ring", 6), ("allreduce", 8)):
        assert last.loc[name, "bytes_sent_total"] == pytest.approx(size * (3 + share * rounds), rel=0.02)


def test_every_command_takes_their_runs(results, capsys):
    assert main(["collect", "exchanges", "--results", str(results)]) == 0
    assert main(["plot", "exchanges", "--results", str(results)]) == 0
    assert main(["status", "exchanges", "--results", str(results)]) == 0
    assert "3 runs: 3 done" in capsys.readouterr().out
    assert main(["report", "exchanges", "--results", str(results)]) == 0
    assert main(["run", str(EXPERIMENT), "--results", str(results), "--dry-run"]) == 0
    assert "# 2 runs on 4 processes" in capsys.readouterr().out
    assert main(["check", str(EXPERIMENT)]) == 0
    assert "4 workers in exchange ring: 4 processes over mpi" in capsys.readouterr().out
    assert main(["check", str(EXPERIMENT), "--only", "train.exchange=ring", "--set", "topology.workers=1"]) == 0
    assert "1 worker in exchange ring: 1 process over mpi" in capsys.readouterr().out


def test_ps_lite_needs_no_server(tmp_path):
    text = EXPERIMENT.read_text().partition("# The keys of one table")[0]
    text = text.replace("servers = 1\n", "servers = 0\n").replace("workers = 4\n", "workers = 2\n")
    (tmp_path / "ring.toml").write_text(f'{text}\n[[sweep]]\n"train.exchange" = ["ring"]\n')
    command = [sys.executable, "-m", "hpcps", "run", "ring.toml", "--results", tmp_path, *EPOCHS]
    subprocess.run([*command, "--set", "transport.kind=pslite"], cwd=tmp_path, check=True, timeout=300)
    assert main(["run", str(tmp_path / "ring.toml"), "--results", str(tmp_path / "inproc"), *SMALLER]) == 0
    there, here = (models(folder / "exchanges/runs") for folder in (tmp_path, tmp_path / "inproc"))
    assert there["ring"].tobytes() == here["ring"].tobytes()
