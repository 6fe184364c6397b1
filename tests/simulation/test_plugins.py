"""A run with a plugin is repeated in virtual time with that plugin."""

import sys

from test_calibration import measured_run, write_run

from hpcps.execution.simulation.__main__ import main
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.registry.plugins import sha256

MODEL = '''
from typing import Literal

from hpcps.models import Model


class Line(Model):
    """One linear layer."""

    name: Literal["line"] = "line"

    def build(self, shape, classes):
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
'''


def test_the_simulation_table_of_a_run_with_a_plugin(tmp_path, monkeypatch, capsys):
    run = measured_run(train={"epochs": 1, "batch_size": 8}) | {"model": {"name": "line"}}
    plugin = {"file": "line.py", "text": MODEL, "sha256": sha256(MODEL)}
    path = write_run(tmp_path / "run", run=run, plugins=[plugin])
    assert RunDirectory(path).plugins == (("line.py", MODEL),)
    monkeypatch.setattr(sys, "argv", ["simulation", str(path)])
    assert main() == 0, capsys.readouterr().err
    assert '[simulation]\nkind = "modelled"\ncores = 3\nspeed = ' in capsys.readouterr().out
    (path / PLUGINS / "line.py").write_text("import nothing_like_this")
    (path / "DONE").write_text("{}")  # as in an earlier version, which listed no files
    assert main() == 1
    assert "nothing_like_this" in capsys.readouterr().err
