"""A run whose updates are all rejected says so: its accuracy is that of the initial model."""

import pytest
from installed import BACKEND

from hpcps.cli.main import main

FILE = f"""
name = "absurd"
[topology]
workers = 2
[transport]
kind = "inproc"
[model]
name = "mlp"
backend = "{BACKEND}"
[data]
name = "digits"
limit = 192
test_limit = 16
[train]
epochs = 1
batch_size = 16
local_steps = 4
optimizer = {{ lr = 1e38 }}
[[include]]
label = "without validators"
"topology.validators" = 0
[[include]]
label = "asynchronous"
"train.mode" = "async"
"validation.rule" = {{ kind = "zeno++" }}
[[include]]
label = "usual"
"train.optimizer.lr" = 0.01
[[include]]
label = "usual, asynchronous"
"train.optimizer.lr" = 0.01
"train.mode" = "async"
"validation.rule" = {{ kind = "naive_async" }}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "absurd.toml").write_text(FILE)
    assert main(["run", "absurd.toml"]) == 0
    return capsys.readouterr().out


def lines_with(text, output):
    return [line for line in output.splitlines() if text in line]


def test_status_collect_and_the_table_say_that_no_update_was_accepted(run, tmp_path, capsys):
    assert len(lines_with("no update accepted", run)) == 3
    assert not lines_with("usual", "\n".join(lines_with("no update accepted", run)))
    assert main(["status", "absurd"]) == 0
    shown = lines_with("done, no update accepted", capsys.readouterr().out)
    assert len(shown) == 3
    assert not lines_with("usual", "\n".join(shown))
    assert main(["collect", "absurd.toml"]) == 0
    shown = lines_with("no update was accepted, so the model is the initial one", capsys.readouterr().out)
    assert len(shown) == 3
    assert not lines_with("usual", "\n".join(shown))
    table = (tmp_path / "results/absurd/final_accuracy.md").read_text()
    assert "‡ no update was accepted" in table
    assert all("‡" not in line for line in lines_with("usual", table))
