"""Editors of some systems begin a file with a byte order mark, which is no part of its text."""

from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main

PLUGINS = Path(__file__).parents[2] / "examples/plugins"
MARK = "\ufeff"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "marked.toml"
    path.write_text(MARK + small_experiment("marked", {"transport.kind": "mpi"}), encoding="utf-8")
    return path


@pytest.mark.usefixtures("starts_processes")
def test_it_is_skipped_in_experiments_arguments_and_plugins(file, tmp_path, capsys):
    (tmp_path / "own.py").write_text(MARK + (PLUGINS / "my_launcher.py").read_text(), encoding="utf-8")
    (tmp_path / "hosts").write_text(f"{MARK}localhost slots=9\n", encoding="utf-8")
    (tmp_path / "mine.args").write_text(f"{MARK}--hostfile hosts\n--dry-run\n", encoding="utf-8")
    with file.open("a") as experiment:
        experiment.write('plugins = ["./own.py"]\n')
    assert main(["check", "marked.toml"]) == 0
    assert "1 point, no mistakes" in capsys.readouterr().out
    assert main(["run", "marked.toml", "@mine.args"]) == 0, capsys.readouterr().err
