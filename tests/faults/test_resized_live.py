"""Runs of processes that are resized while they run: the same `hpcps run` goes on with another number of workers."""

import os
import signal

import pytest
from fault_runs import assert_quiet, hpcps
from running_processes import within
from test_lost_workers_live import ASYNCHRONOUS, lines, pid_of, until_replaced

from hpcps.cli.main import main

pytestmark = pytest.mark.usefixtures("starts_processes")


def arguments(**keys):
    """Return the arguments that set these keys of a run with two workers, whose rounds take a tenth of a second.

    `__` stands for a dot.
    """
    values = {"topology__workers": 2, "heterogeneity__delay": "{kind='constant',seconds=0.1}", **keys}
    return [part for key, value in values.items() for part in ("--set", f"{key.replace('__', '.')}={value}")]


def resize(run, workers):
    """Request a number of workers; return what the command prints."""
    done = hpcps("resize", run.run.path.name, "--workers", workers, "--results", run.results)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def until_resized(run, workers):
    """Wait until a run has taken rounds with a number of workers."""

    def there():
        assert run.process.poll() is None, run.text
        lines = run.lines("server-0")
        starts = [n for n, line in enumerate(lines) if line["event"] == "start"]
        members = lines[starts[-1]].get("members", [{"workers": 2}]) if starts else [{"workers": None}]
        rounds = [line for line in lines[starts[-1] :] if line["event"] in ("round", "applied")] if starts else []
        return members[-1]["workers"] == workers and len(rounds) > 2

    within(90, there, lambda: f"rounds of {workers} workers\n{run.text}")


def stop(run):
    """Stop a run at a checkpoint."""
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.text
    assert_quiet(run.text)
    assert not run.left()


@pytest.mark.parametrize("transport", ["pslite", "mpi"], ids=["over ps-lite", "over MPI"])
def test_a_run_goes_on_with_other_workers_while_it_is_executed(start, transport, capsys):
    run = start(*arguments(transport__kind=transport))
    run.until()
    for workers in (3, 1):
        assert f"and goes on with {workers} where its epoch ends" in resize(run, workers)
        until_resized(run, workers)
    stop(run)
    name = run.run.path.name
    assert f"run {name} (faults) goes on with 3 workers instead of 2 after epoch" in run.text
    assert [each["workers"] for each in run.run.spec["members"]] == [2, 3, 1]
    assert main(["replay", name, "--results", str(run.results)]) == 0
    assert "record lines of 3 attempts are equal" in capsys.readouterr().out


def test_a_stopped_run_goes_on_with_other_workers_where_its_epoch_ends(start):
    run = start(*arguments(transport__kind="pslite"))
    run.until()
    stop(run)
    assert "is not executed now: `hpcps run` goes on with 3" in resize(run, 3)
    again = start(*arguments(transport__kind="pslite"))
    until_resized(again, 3)
    stop(again)


def test_a_run_for_which_there_are_too_few_slots_goes_on_with_its_workers(start, tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=4\n")
    run = start(*arguments(transport__kind="pslite"), "--hostfile", str(tmp_path / "hosts"))
    run.until()
    resize(run, 9)
    within(90, lambda: "stays at 2 workers: " in run.text, lambda: run.text)
    until_resized(run, 2)
    stop(run)
    assert "members" not in run.run.spec


MODES = {
    "synchronous": (),
    "with a quorum": ("--set", "train.quorum=0.5", "--set", "train.late=next"),
    "asynchronous": ASYNCHRONOUS,
}


def lose(run, process):
    """Kill a process, and wait until its replacement takes part."""
    os.kill(pid_of(run, process), signal.SIGKILL)
    until_replaced(run, process)


def kill_and_resize(run, process, workers):
    """Kill a process, and have the run resized; its epochs last less time than a replacement needs to start."""
    os.kill(pid_of(run, process), signal.SIGKILL)
    run.run.request_resize(workers)
    until_resized(run, workers)


@pytest.mark.sample(1)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_loses_processes_goes_on_with_other_workers(start, mode, capsys):
    """Before the change, where the epoch ends, and after it: workers that stay and one that has joined."""
    survive = {f"survive__{role}": "true" for role in ("workers", "validators", "servers")}
    run = start(*arguments(transport__kind="pslite", topology__validators=1, **survive), *MODES[mode])
    run.until("validator-0")
    lose(run, "worker-1")
    kill_and_resize(run, "worker-0", 3)
    lose(run, "worker-2")
    lose(run, "validator-0")
    kill_and_resize(run, "worker-2", 2)
    lose(run, "worker-1")
    stop(run)
    assert [each["workers"] for each in run.run.spec["members"]] == [2, 3, 2]
    lost = [line["process"] for decider in ("validator-0", "server-0") for line in lines(run, "lost", decider)]
    assert {*lost} >= {"worker-0", "worker-1", "worker-2"}
    capsys.readouterr()
    status = main(["replay", run.run.path.name, "--results", str(run.results)])
    said = capsys.readouterr()
    assert status == 0, f"{said.out}\n{said.err}"
    assert "record lines of 3 attempts are equal" in said.out
