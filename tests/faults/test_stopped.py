"""Runs that are stopped by a person or a batch system, and what happens when they are run again."""

import fcntl
import os
import pty
import re
import shlex
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fault_runs import MIDDLE, SOON, Play, assert_quiet, hpcps
from running_processes import processes, within

from hpcps.cli.main import main
from hpcps.records.files import read_lines

pytestmark = pytest.mark.usefixtures("starts_processes")


def test_ctrl_c_in_a_terminal(start: Callable[..., Play], capsys: pytest.CaptureFixture[str]) -> None:
    keyboard, terminal = pty.openpty()

    def own_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    play = start(**streams, start_new_session=True, preexec_fn=own_terminal)
    play.until()
    os.write(keyboard, b"\x03")
    assert play.end() == 130
    os.close(terminal)
    shown = read_all(keyboard)
    assert_quiet(shown)
    # The display is on a line of its own; what mpirun says of the ranks that end is not shown.
    assert shown.replace("\r\n", "\n").endswith("\nhpcps: stopped by SIGINT; run it again to go on\n")
    assert re.search(r"\r\x1b\[K +faults +epoch ", shown), shown
    assert_stopped(play, capsys)


def test_a_batch_system_ends_it_while_it_starts(start: Callable[..., Play]) -> None:
    play = start()

    def starting() -> bool:
        return any("hpcps.execution" in command for command in play.left().values())

    within(60, starting, "a process of the run")
    play.process.terminate()
    assert play.end() == 143
    assert play.left() == {}
    assert_quiet(play.text)
    assert play.text.endswith("hpcps: stopped by SIGTERM; run it again to go on\n")
    assert not list(play.results.glob("*/runs/*/DONE"))


def test_ctrl_c_of_mpirun_itself(
    start: Callable[..., Play], experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = experiment.parent / "results"
    line = hpcps("run", experiment, "--results", results, "--dry-run").stdout.splitlines()[-1]
    play = start(command=("bash", "-c", line), start_new_session=True)
    play.until()
    roles = [play.pid(process) for process in ("worker-0", "server-0")]
    os.killpg(play.process.pid, signal.SIGINT)
    # Impatience does no harm.
    while play.process.poll() is None:
        for role in roles:
            with suppress(ProcessLookupError):
                os.kill(role, signal.SIGTERM)
        time.sleep(0.005)
    assert play.end() != 0
    within(SOON, lambda: not play.left(), f"the end of {play.left()}")
    assert_quiet(play.text)
    assert_stopped(play, capsys, "stopped")


def test_impatience_stops_it_at_once(start: Callable[..., Play], capsys: pytest.CaptureFixture[str]) -> None:
    # A round that takes far longer than anybody waits.
    play = start("--set", "heterogeneity.delay={kind='constant', seconds=600}")
    within(60, lambda: play.lines("worker-0"), "a record")
    play.process.send_signal(signal.SIGINT)
    within(SOON, lambda: "at the next checkpoint" in play.text, "an answer")
    assert play.process.poll() is None
    play.process.send_signal(signal.SIGINT)
    assert play.end() == 130
    assert_quiet(play.text)
    assert play.text.endswith("hpcps: stopped by SIGINT; run it again to go on\n")
    assert_stopped(play, capsys, "stopped")


def test_ctrl_c_in_one_process(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = experiment.parent / "results"

    def interrupt() -> None:
        records = within(60, lambda: list(results.glob("*/runs/*/records/server-0.jsonl")), "a record")
        within(60, lambda: len(read_lines(records[0]).lines) > MIDDLE, "the middle of the run")
        os.kill(os.getpid(), signal.SIGINT)

    person = threading.Thread(target=interrupt)
    person.start()
    assert main(["run", str(experiment), "--results", str(results), "--set", "transport.kind=inproc"]) == 130
    person.join()
    assert capsys.readouterr().out.endswith("hpcps: stopped at a checkpoint; run it again to go on\n")
    for record in results.glob("*/runs/*/records/*.jsonl"):
        assert read_lines(record).lines[-1]["reason"] == "suspended"
    assert not list(results.glob("*/runs/*/DONE"))


def test_stopped_and_run_again(
    start: Callable[..., Play], experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two seconds of training in a hundred rounds.
    brief = ("--set", "data.limit=1437", "--set", "train.local_steps=44", "--set", "train.epochs=100")
    results = tmp_path / "results"

    # What --dry-run writes is all that is needed, and it launches nothing.
    written = hpcps("run", experiment, "--results", results, *brief, "--dry-run", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    told, line = written.stdout.splitlines()
    files = [Path(name) for name in told.partition("; wrote ")[2].split(", ")]
    assert len(files) == 3
    assert all(file.is_file() for file in files)
    assert len(list(results.glob("*/launch/*"))) == 1
    assert not list(results.glob("*/runs"))
    assert processes(str(results)) == {}

    # Its line really is how to start it: an undisturbed run.
    undisturbed = start(command=("bash", "-c", line), cwd="/")
    assert undisturbed.end(120) == 0, undisturbed.text
    assert undisturbed.left() == {}
    assert undisturbed.run.done
    assert [argument in line for argument in map(shlex.quote, map(str, files[1:]))] == [True, True]
    wanted = final_model(undisturbed)

    again = hpcps("run", experiment, "--results", results, *brief, cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout == "faults: 1 of 1 runs are done already and are skipped\n"
    assert len(list(results.glob("*/launch/*"))) == 1

    # Asked for, it is played again; then stopped, it is not done any more.
    stopped = start(*brief, "--no-resume")
    stopped.until()
    assert [line["attempt"] for line in stopped.lines("worker-0") if line["event"] == "start"] == [2]
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.end() == 130
    assert_quiet(stopped.text)
    assert stopped.text.endswith("hpcps: stopped by SIGINT; run it again to go on\n")
    assert_stopped(stopped, capsys)
    os.remove(stopped.run.path / "final" / "server-0.npy")

    # Run once more, as with nohup, where the end of the terminal does not matter.
    finishing = start(*brief, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    finishing.until()
    finishing.process.send_signal(signal.SIGHUP)
    assert finishing.end(120) == 0, finishing.text
    assert finishing.run.done
    (begun,) = (line for line in finishing.lines("worker-0") if line["event"] == "start")
    assert begun["attempt"] == 3
    assert begun["continues"] > MIDDLE
    assert np.array_equal(final_model(finishing), wanted)


def test_stopped_when_all_is_done(start: Callable[..., Play], tmp_path: Path) -> None:
    """A batch system deletes a job whose launcher has not ended yet."""
    late = tmp_path / "mpirun"
    late.write_text(f'#!/bin/sh\n{Path(sys.executable).parent}/mpirun "$@"\nsleep 2\n')
    late.chmod(0o755)
    play = start("--mpirun", str(late), "--set", "train.epochs=1")
    within(60, lambda: list(play.results.glob("*/runs/*/DONE")), "the end of the run")
    play.process.terminate()
    assert play.end() == 0
    assert play.text.endswith("hpcps: stopped by SIGTERM after its last run was done\n")


def assert_stopped(play: Play, capsys: pytest.CaptureFixture[str], reason: str = "suspended") -> None:
    """Nobody is left, nobody is to blame, and the run is not done."""
    assert play.left() == {}
    assert not play.run.done
    assert play.run.failures == ()
    for process in ("worker-0", "server-0"):
        assert play.lines(process)[-1]["event"] == "end"
        assert play.lines(process)[-1]["reason"] == reason
    assert main(["status", str(play.run.path.parents[1])]) == 0
    assert re.search(rf"{play.run.path.name} +\S+ +stopped ", capsys.readouterr().out)


def final_model(play: Play) -> np.ndarray:
    return np.load(play.run.path / "final" / "server-0.npy")


def read_all(terminal: int) -> str:
    """Read what has been shown on a terminal that nobody has open any more."""
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    return shown.decode()


def test_training_does_not_wait_for_a_stopped_evaluator(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    epochs, rounds = 60, 300
    play = start("--set", "topology.evaluators=1", "--set", f"train.epochs={epochs}")
    play.until("worker-0")
    evaluator = play.pid("evaluator-0")
    os.kill(evaluator, signal.SIGSTOP)
    play.until("worker-0", rounds - 1)
    within(SOON, lambda: not_evaluated(play)[-1:] == [epochs - 1], "all models but the last one and one before it")
    assert play.process.poll() is None, "it waits for the evaluation of the last model"
    within(SOON, lambda: play.lines("server-0")[-1]["event"] == "end", "the end of the server")
    assert main(["status", str(play.run.path.parents[1])]) == 0
    assert "the training is over, and the evaluation of the last model is awaited" in capsys.readouterr().out
    os.kill(evaluator, signal.SIGCONT)
    assert play.end() == 0, play.text
    evaluated = [line["epoch"] for line in play.lines("worker-0") if line["event"] == "evaluation"]
    assert evaluated[-1] == epochs
    assert sorted(evaluated + not_evaluated(play)) == [*range(1, epochs + 1)]
    assert len(evaluated) < epochs / 2


def not_evaluated(play: Play) -> list[int]:
    """Return the epochs that the evaluator has left out."""
    return [line["epoch"] for line in play.lines("worker-0") if line["event"] == "not_evaluated"]
