"""What `make test` runs of hpcps as a whole: real processes, as few as show that each way of running works.

Every command of the command line is called once; test_every_command_is_called says which test calls it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.cli import main as command_line
from hpcps.cli.main import main

ROOT = Path(__file__).parents[2]
HPCPS = [sys.executable, "-m", "hpcps"]
SECONDS = 600
"""Time limit of a command, for a machine that is ten times slower than the slowest that we know."""
RUN = {"topology.servers": 1, "topology.validators": 1, "data.limit": 240, "checkpoint.every": 1}
CALLED: set[str] = set()

pytestmark = [pytest.mark.usefixtures("starts_processes"), pytest.mark.timeout(2 * SECONDS)]

Command = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all commands are typed."""
    folder = tmp_path_factory.mktemp("typed")
    sweep = '[[sweep]]\n"validation.rule.kind" = ["average", "median"]\n'
    mine = {"transport.kind": "mpi", "topology.workers": 2}
    late = {"train.mode": "async", "validation.rule.kind": "naive_async"}
    (folder / "mine.toml").write_text(small_experiment("mine", RUN | mine, sweep))
    (folder / "late.toml").write_text(small_experiment("late", RUN | late))
    return folder


@pytest.fixture
def called(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Call a command in this process, which is faster; return what it prints on both streams."""

    def call(*arguments: str, status: int = 0) -> str:
        CALLED.add(arguments[0])
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HPCPS_RESULTS", "results")
        ended = main(arguments)
        said = "".join(capfd.readouterr())
        assert ended == status, said
        return said

    return call


@pytest.fixture(scope="module")
def hpcps(folder: Path) -> Command:
    """Type a command; return what it prints on both streams."""

    def call(*arguments: str, status: int = 0) -> str:
        CALLED.add(arguments[0])
        done = subprocess.run(
            [*HPCPS, *arguments],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == status, said
        assert "Traceback" not in said, said
        return said

    return call


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HPCPS_RESULTS": "results"}


def final_models(folder: Path) -> dict[str, list[bytes]]:
    """Return the final model of each run, by the run's label."""
    found = {}
    for file in sorted(folder.glob("runs/*/spec.json")):
        label = json.loads(file.read_text())["label"]
        found[label] = [part.read_bytes() for part in sorted((file.parent / "final").glob("*.npy"))]
    return found


@pytest.fixture(scope="module")
def ran(folder: Path, hpcps: Command) -> Path:
    """The results of two runs over a real mpirun."""
    assert "[2/2] median" in hpcps("run", "mine.toml")
    return folder / "results/mine"


def test_mpirun_and_one_process_give_the_same_model(ran: Path, called: Command) -> None:
    called("run", "mine.toml", "--set", "transport.kind=inproc", "--results", "inproc")
    assert final_models(ran.parents[1] / "inproc/mine") == final_models(ran)
    assert len(final_models(ran)) == 2


def test_pslite_gives_the_same_model(ran: Path, hpcps: Command) -> None:
    hpcps("run", "mine.toml", "--set", "transport.kind=pslite", "--only", "median", "--results", "pslite")
    (found,) = final_models(ran.parents[1] / "pslite/mine").values()
    assert found == final_models(ran)["median"]


def test_a_killed_run_goes_on_from_its_checkpoint(folder: Path, called: Command) -> None:
    keys = {**RUN, "train.epochs": 20}
    (folder / "killed.toml").write_text(small_experiment("killed", keys))
    process = subprocess.Popen([*HPCPS, "run", "killed.toml"], cwd=folder, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS
    while not list(folder.glob("results/killed/runs/*/checkpoints/*/manifest.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    called("run", "killed.toml")
    called("run", "killed.toml", "--results", "undisturbed")
    assert final_models(folder / "results/killed") == final_models(folder / "undisturbed/killed")
    (record,) = folder.glob("results/killed/runs/*/records/validator-0.jsonl")
    assert '"continues"' in record.read_text()


def test_an_own_script_learns(folder: Path, hpcps: Command, called: Command) -> None:
    for name in ("digits.py", "data.py"):
        shutil.copy(ROOT / "examples/own_script" / name, folder)
    said = hpcps("launch", "-n", "2", sys.executable, "digits.py", "--epochs", "2")
    assert "2 processes: accuracy 0.9" in said
    assert "digits" in called("status")


def test_results_become_tables_figures_and_a_report(ran: Path, called: Command) -> None:
    assert "median" in called("status", "mine")
    assert "2 runs: 2 done" in called("collect", "mine")
    assert "median" in called("plot", "mine")
    figures = {path.name for path in (ran / "figures").glob("*.png")}
    assert "accuracy_by_epoch.png" in figures
    report = ran.parent / "report.html"
    called("report", "mine", "-o", str(report))
    assert "median" in report.read_text()
    called("evaluate", "mine")
    assert len(list(ran.glob("runs/*/evaluation.json"))) == 2
    called("export", "mine", "--to", "latex")
    called("publish", "mine")
    assert (ran.parent / "published/mine/provenance.json").exists()


def test_an_asynchronous_run_is_replayed(called: Command) -> None:
    called("run", "late.toml")
    assert "equal" in called("replay", "late")
    assert "is done: nothing is left for other workers" in called("resize", "late", "--workers", "3", status=2)


def test_what_needs_no_run(folder: Path, called: Command) -> None:
    assert "2 points, no mistakes" in called("check", "mine.toml")
    assert "mpirun" in called("run", "mine.toml", "--dry-run", "--results", "written")
    assert "trimmed_mean" in called("components", "rules")
    assert "digits" in called("data", "digits", "--check")
    assert "hpcps" in called("completion", "bash")
    assert "mpirun" in called("doctor", "mine.toml")
    assert "nothing" in called("import", "esync", "nothing", status=2)
    (folder / "search.toml").write_text(small_experiment("search", {"topology.workers": 2}, SEARCH))
    assert "0.1" in called("search", "search.toml")


SEARCH = """
[search]
kind = "grid"
epochs = 1
holdout = 0.2
[search.values]
"train.optimizer.lr" = [0.1, 0.01]
"""


def test_every_command_is_called() -> None:
    (commands,) = (action for action in command_line.parser()._actions if action.dest == "COMMAND" or action.choices)
    assert set(commands.choices or ()) <= CALLED
