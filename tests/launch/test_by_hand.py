"""A launch that somebody types, without `hpcps run`, prints its progress."""

import shlex
import subprocess

import pytest

from hpcps.cli.configgen import main as configgen

pytestmark = pytest.mark.usefixtures("starts_processes")

FILE = """
name = "typed"
topology = { workers = 1, validators = 0 }
model.name = "mlp"
data = { name = "digits", limit = 160, test_limit = 50 }
train = { epochs = 1, batch_size = 16 }
[[sweep]]
"validation.rule.kind" = ["average", "median"]
"""


def test_mpirun_prints_each_run_that_is_done(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typed.toml").write_text(FILE)
    assert configgen(["typed.toml", "-o", "conf"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *lines = done.stdout.splitlines()
    assert first == "hpcps: 2 runs to execute"
    assert [line.split()[:4] for line in lines] == [
        ["[1/2]", "average", "epoch", "1.0/1"],
        ["[2/2]", "median", "epoch", "1.0/1"],
    ]
    assert all("accuracy" in line for line in lines)
