"""The documentation lists the exit statuses of the code."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main, parser
from hpcps.errors import LaunchError
from hpcps.launch.exit_status import ExitStatus, exit_status_of
from hpcps.records.run_directory import RunDirectory

PAGE = Path(__file__).parents[2] / "docs/reference/command-line.md"


def test_the_table_in_the_documentation_is_complete():
    table = PAGE.read_text().partition("| Status | Meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| {status.value} | {status.meaning} |" for status in ExitStatus]


def test_each_signal_that_stops_a_run_has_a_status():
    assert {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)} < {*ExitStatus}


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (LaunchError("no host"), ExitStatus.REFUSED, "configgen: no host\n"),
        (FileNotFoundError(2, "No such file", "conf"), ExitStatus.REFUSED, "configgen: conf: No such file\n"),
        (KeyboardInterrupt(), ExitStatus.INTERRUPTED, "configgen: stopped\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(error, status, text, capsys):
    def fail():
        raise error

    assert exit_status_of(fail, "configgen") == status
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["krum"], "unknown kind of component 'krum': did you mean `hpcps components rules krum`? There are: rules,"),
        (
            ["rule"],
            "unknown kind of component 'rule': did you mean 'rules'? There are: rules, preaggregators, attacks,",
        ),
        (["xyz"], "unknown kind of component 'xyz'. There are: rules, preaggregators, attacks,"),
        (["rules", "xyz"], "unknown rule 'xyz'. There are: aksel, average,"),
    ],
)
def test_a_wrong_argument_is_answered_with_the_right_ones(arguments, said, capsys):
    assert main(["components", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"hpcps: {said}")


@pytest.mark.usefixtures("starts_processes")
def test_what_the_terminal_cannot_show_is_escaped(tmp_path):
    run = RunDirectory(tmp_path / "mine/runs/0123456789")
    run.create({"run_id": "0123456789", "label": "ν = 1 \udce9", "run": {}})
    run.path.joinpath("failure").mkdir()
    failure = {"time": 1.0, "role": "worker", "index": 0, "host": "h", "phase": "train", "error": "no caf\udce9"}
    (run.path / "failure/worker-0.json").write_text(json.dumps(failure))
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", "status", "mine", "--results", str(tmp_path)],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert r"no caf\udce9" in done.stdout


def test_every_command_but_launch_takes_arguments_of_a_file(tmp_path, capsys):
    commands = next(each.choices for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert [name for name, command in commands.items() if command.fromfile_prefix_chars != "@"] == ["launch"]
    (tmp_path / "mine.toml").write_text(small_experiment("mine"))
    (tmp_path / "mine.args").write_text("--set train.epochs=3\n--only 0  # the first\n")
    assert main(["check", str(tmp_path / "mine.toml"), f"@{tmp_path / 'mine.args'}"]) == 0
    assert "3 epochs" in capsys.readouterr().out
