"""Processes that are killed, crash or hang in the middle of a run."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_runs import ENDLESS, MIDDLE, ROOT, SOON, Play, assert_blamed, assert_quiet
from running_processes import parent, within

import hpcps
from hpcps.cli.main import main
from hpcps.records.table import read_table

pytestmark = pytest.mark.usefixtures("starts_processes")

SERVERS = ("--set", "topology.servers=2")
ATTACKED = ("--set", "topology.workers=2", "--set", "attack={kind='ipm', rate=0.5}")
WORKERS = ("--set", "topology={servers=0, validators=0, workers=2}", "--set")
EVALUATOR = ("--set", "topology.evaluators=1")
QUORUM = ("--set", "topology.workers=2", "--set", "train.quorum=1", "--set", "train.grace=10")
PATIENCE = ("--set", "transport.timeout=2")

CASES = {
    "server": ("server-1", signal.SIGSEGV, SERVERS, r"the process was killed by signal 11 \(SIGSEGV\)"),
    "adversary": ("adversary-0", signal.SIGKILL, ATTACKED, r"the process was killed by signal 9 \(SIGKILL\)"),
    # Server 0's patience may end first, and it waits for the worker, who waits for server 1.
    "hang": (
        "server-1",
        signal.SIGSTOP,
        (*SERVERS, *PATIENCE),
        r"it sent nothing for 2 s, and \w+-0.* waited",
    ),
    # Neither a lost evaluator nor one that never answers is waited for without end. This is the process of the launch.
    "evaluator": ("evaluator-0", signal.SIGKILL, EVALUATOR, r"the process was killed by signal 9 \(SIGKILL\)"),
    "quorum": ("worker-1", signal.SIGKILL, QUORUM, r"the process was killed by signal 9 \(SIGKILL\)"),
    "ring": ("worker-1", signal.SIGKILL, (*WORKERS, "train.exchange=ring"), r"killed by signal 9 \(SIGKILL\)"),
}

SOAKED = "adversary", "quorum"


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.soak if name in SOAKED else ()) for name in CASES]
)
def test_the_lost_process_is_named(case: str, start: Callable[..., Play], capsys: pytest.CaptureFixture[str]) -> None:
    who, number, arguments, why = CASES[case]
    play = start(*arguments)
    play.until(with_rounds(who))
    if who == "evaluator-0":
        within(SOON, lambda: any(line["event"] == "evaluated" for line in play.lines(who)), "an evaluation")
    pid = play.pid(who)
    os.kill(pid if who != "evaluator-0" else parent(pid), number)
    assert_failed(play, who, why, capsys)
    if case == "hang":
        # Long before anybody gives up it is on record who waits for whom.
        (wait,) = (line for line in play.lines("worker-0") if line["event"] == "waiting")
        assert wait["waiting_for"] == [who]


EPOCHS = 100


@pytest.mark.parametrize(("transport", "kills"), [("mpi", 1), pytest.param("pslite", 2, marks=pytest.mark.soak)])
def test_training_does_not_notice_that_the_process_that_evaluates_is_killed(
    transport: str, kills: int, start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", f"train.epochs={EPOCHS}", "--set", f"transport.kind={transport}")
    play = start(*EVALUATOR, *options)
    play.until("worker-0")
    within(SOON, lambda: any(line["event"] == "evaluated" for line in play.lines("evaluator-0")), "an evaluation")
    os.kill(play.pid("evaluator-0"), signal.SIGKILL)

    def died() -> list[dict[str, Any]]:
        return [line for line in play.lines("evaluator-0") if line["event"] == "evaluator_died"]

    within(SOON, died, "the note of its death")
    if kills == 2:
        os.kill(died()[0]["next_pid"], signal.SIGKILL)  # before it has evaluated the same model
    assert play.end(3 * SOON) == 0, play.text
    assert play.left() == {}
    assert [line["how"] for line in died()] == ["was killed by signal 9 (SIGKILL)"] * kills
    assert [line["again"] for line in died()] == [True, False][:kills]
    lines = play.lines("worker-0")
    lost = [line["round"] for line in lines if "ended 2 times" in line.get("reason", "")]
    assert lost == [line["round"] for line in died()[1:]]
    assert [line["epoch"] for line in lines if line["event"] == "evaluation"][-1] == EPOCHS

    assert main(["status", str(play.run.path.parents[1])]) == 0
    times = "once" if kills == 1 else "2 times"
    assert f"the process that evaluates ended {times}" in capsys.readouterr().out
    if kills == 2:
        report = play.run.path / "report.html"
        assert main(["report", str(play.run.path.parents[1]), "-o", str(report)]) == 0
        assert "1 model could not be evaluated" in report.read_text()

    file = play.results.parent / "alone.toml"
    file.write_text(ENDLESS)
    alone, settings = file.with_suffix(""), {"train.epochs": EPOCHS, "transport.kind": "inproc"}
    hpcps.run(file, set=settings, results=alone, progress=False)
    (model,) = alone.glob("*/runs/*/final/*.npy")
    assert model.read_bytes() == (play.run.path / "final" / model.name).read_bytes()


BUFFERS = Path(__file__).parents[1] / "buffers"
DEVICE_TOPOLOGY = (
    *("--set", "topology={servers=2, validators=1, workers=2}"),
    *("--set", "validation.rule={kind='zeno'}", "--set", "transport.device_buffers=direct"),
)


@pytest.mark.soak
def test_a_process_whose_device_memory_mpi_sends_is_named(
    start: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCPS_DEVICE", "late_device:open_device")
    path = [os.environ.get("PYTHONPATH", ""), str(BUFFERS.parents[1]), str(BUFFERS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    before = set(os.listdir("/dev/shm"))
    play = start(*DEVICE_TOPOLOGY)
    play.until("worker-1")
    (begun,) = (line for line in play.lines("worker-1") if line["event"] == "start")
    assert begun["device_buffers"] == "direct"
    os.kill(play.pid("worker-1"), signal.SIGKILL)
    assert play.end() > 0
    within(SOON, lambda: not play.left(), "the end of the ranks")
    assert_quiet(play.text)
    assert_blamed(play.text, play.run, "worker-1", r"the process was killed by signal 9 \(SIGKILL\)")
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "hpcps" in name]


BREAKS = '''
import glob, json, os, signal
from typing import Literal
from hpcps.rules import Rule

class Breaks(Rule):
    """Kills a worker."""

    kind: Literal["breaks"] = "breaks"

    def aggregate(self, updates, context):
        for file in glob.glob("{results}/*/runs/*/records/worker-0.jsonl"):  # none when the rule is checked
            first, *others = open(file).readlines()
            if any('"round"' in line for line in others):
                os.kill(json.loads(first)["pid"], signal.SIGKILL)
                raise RuntimeError("what MPI says then")
        return updates.mean(axis=0)
'''


def test_an_error_that_the_end_of_another_process_causes_is_not_blamed(
    start: Callable[..., Play], experiment: Path
) -> None:
    """An error of MPI may come before the guard of that process has reported it, and then MPI ends the guard, too."""
    plugin = experiment.with_name("breaks.py")
    plugin.write_text(BREAKS.format(results=experiment.with_name("results")))
    play = start("--set", f"plugins=['{plugin}']", "--set", "validation.rule={kind='breaks'}")
    assert play.end() > 0
    assert_blamed(play.text, play.run, "worker-0", r"the process was killed by signal 9 \(SIGKILL\)")


QUICKSTART = ROOT / "experiments" / "quickstart.toml"
SERVER = """
import sys
import hpcps.roles.sync.server
from hpcps.protocol.messages import Peer
from hpcps.execution.role_factory import make_role
from hpcps.spec.load import load_experiment
run = load_experiment(sys.argv[1]).points[0].run
assert make_role(run.identified("run"), Peer("server", 0)).peer == Peer("server", 0)
print(*{name.partition(".")[0] for name in sys.modules} & {"torch", "pandas", "pyarrow", "matplotlib", "sklearn"})
"""


def test_a_server_imports_no_framework() -> None:
    called = subprocess.run(
        [sys.executable, "-c", SERVER, str(QUICKSTART)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (called.returncode, called.stdout, called.stderr) == (0, "\n", "")


def with_rounds(who: str) -> str:
    """Return a process that records rounds: this one, or another one if it is the evaluator."""
    return "worker-0" if who == "evaluator-0" else who


def assert_failed(play: Play, who: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends, says who is to blame, leaves no process, and what it did until then can be read."""
    since = time.monotonic()
    assert play.end() > 0
    assert time.monotonic() - since < SOON
    assert play.left() == {}
    assert_quiet(play.text)
    assert_blamed(play.text, play.run, who, why)

    experiment = play.run.path.parents[1]
    assert main(["status", str(experiment)]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"{play.run.path.name} .* failed ", shown), shown
    assert re.search(rf"{play.run.path.name}: (first )?{who} on \S+ failed in round \d+.*{why}", shown), shown

    assert main(["collect", str(experiment)]) == 0
    assert "1 failed" in capsys.readouterr().out
    table = read_table(experiment / "table.parquet")
    role, _, index = with_rounds(who).partition("-")
    rounds = table[(table["event"] == "round") & (table["role"] == role) & (table["index"] == int(index))]
    assert set(range(MIDDLE + 1)) <= set(rounds["round"]), "its rounds until then"
