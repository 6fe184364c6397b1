from pathlib import Path

import pytest
from matplotlib.figure import Figure

from hpcps.cli.main import main
from hpcps.records.collect import collect

ASYNCHRONOUS = """
name = "real"
[topology]
servers = 2
workers = 4
[transport]
kind = "inproc"
[model]
name = "mlp"
[data]
name = "digits"
limit = 400
test_limit = 100
[train]
mode = "async"
epochs = 4
batch_size = 8
local_steps = 2
[communication]
skip_rate = 0.2
[validation]
rule = { kind = "zeno++" }
[attack]
kind = "negative"
scale = 2
rate = 0.3
"""


@pytest.fixture
def empty_files(monkeypatch):
    """Write empty files for figures, which takes a tenth of the time: for tests of which files there are."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **options: Path(file).touch())


@pytest.fixture(scope="session")
def asynchronous_run(tmp_path_factory):
    """The table of a real asynchronous run of zeno++ under attack, small, in this process."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "real.toml").write_text(ASYNCHRONOUS)
    assert main(["run", str(folder / "real.toml"), "--results", str(folder)]) == 0
    return collect(folder / "real").table
