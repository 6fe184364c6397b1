from pathlib import Path

import pytest
from matplotlib.figure import Figure
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.collect import collect

ASYNCHRONOUS = {
    "topology.servers": 2,
    "topology.workers": 4,
    "data.limit": 400,
    "train.mode": "async",
    "train.epochs": 4,
    "train.local_steps": 2,
    "communication.skip_rate": 0.2,
    "validation.rule.kind": "zeno++",
    "attack.kind": "negative",
    "attack.scale": 2,
    "attack.rate": 0.3,
}


@pytest.fixture
def hpcps(tmp_path, capsys):
    """Call a command with results in an empty folder; returns what it printed, or its error."""

    def call(*arguments, status=0):
        assert main([*map(str, arguments), "--results", str(tmp_path / "results")]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return call


@pytest.fixture
def empty_files(monkeypatch):
    """Write empty files for figures, which takes a tenth of the time: for tests of which files there are."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: Path(file).touch())


@pytest.fixture(scope="session")
def asynchronous_run(tmp_path_factory):
    """The table of a real asynchronous run of zeno++ under attack, small, in this process."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "real.toml").write_text(small_experiment("real", ASYNCHRONOUS))
    assert main(["run", str(folder / "real.toml"), "--results", str(folder)]) == 0
    return collect(folder / "real").table
