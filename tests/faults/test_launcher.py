"""The processes between `hpcps run` and the roles, mpirun, its proxy and the guards, that are killed or stopped."""

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fault_runs import Play, assert_blamed, assert_quiet
from running_processes import TOPOLOGY, parent, topology_files, within

pytestmark = pytest.mark.usefixtures("starts_processes")

HOST = re.escape(socket.gethostname())
TWO = ("--set", "topology.workers=2")
ENDLESS_ROUND = ("--set", "heterogeneity.delay={kind='constant', seconds=600}")

with_proxy = pytest.mark.skipif(
    not Path(sys.executable).with_name("hydra_pmi_proxy").exists(), reason="another MPI than MPICH"
)


def above(play: Play, process: str) -> dict[str, int]:
    """Return the processes above that of a role."""
    guard = parent(play.pid(process))
    return {"guard": guard, "proxy": parent(guard), "mpirun": parent(parent(guard))}


@pytest.fixture
def continued() -> Iterator[list[int]]:
    """Stopped processes that are to go on, if they are still there."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)


def test_a_killed_guard_is_named_after_its_process(start: Callable[..., Play]) -> None:
    play = start(*TWO)
    play.until("worker-1")
    os.kill(above(play, "worker-1")["guard"], signal.SIGKILL)
    assert play.end() == 1
    assert play.left() == {}
    assert_quiet(play.text)
    assert_blamed(play.text, play.run, "worker-1", "its guard was killed")
    assert not list(play.results.glob("*/launch/*/*.lost"))


EARLY = """
import os, pathlib, signal, time
if "hpcps.execution" in pathlib.Path("/proc/self/cmdline").read_text() and os.environ.get("PMI_RANK") == "1":
    while sum(1 for _ in pathlib.Path({results!r}).glob("*/launch/*/*.lost/*")) < 2:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""The start of Python in a process that is killed before it has a guard, once both others have one."""


@with_proxy
def test_a_process_that_is_killed_before_it_has_a_guard_is_named(
    start: Callable[..., Play], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "early").mkdir()
    (tmp_path / "early/sitecustomize.py").write_text(EARLY.format(results=str(tmp_path / "results")))
    path = os.pathsep.join(filter(None, (str(tmp_path / "early"), os.environ.get("PYTHONPATH"))))
    monkeypatch.setenv("PYTHONPATH", path)
    play = start(*TWO)
    assert play.end(120) == 1
    assert_quiet(play.text)
    reason = "it ended before it could report why, and the launcher ended with status 9"
    assert re.search(rf"hpcps: run \w+ \(faults\): \w+-\d on {HOST} failed in phase start: {reason}\n", play.text), (
        play.text
    )
    assert play.run.failures[0].error == reason
    assert not list(play.results.glob("*/launch/*/*.lost"))


@with_proxy
def test_a_killed_proxy_is_named_by_its_host_and_its_file_removed(start: Callable[..., Play]) -> None:
    other = Path(f"{TOPOLOGY}{os.getpid()}")
    other.touch()
    play = start(*TWO)
    play.until()
    proxy = above(play, "worker-1")["proxy"]
    (file,) = topology_files(proxy)
    os.kill(proxy, signal.SIGKILL)
    assert play.end() == 1
    assert play.left() == {}
    what = rf"the launcher's process on {HOST} died, and with it all 3 processes there\n"
    assert re.search(rf"hpcps: run \w+ \(faults\): \w+-\d on {HOST} failed .*: {what}", play.text), play.text
    assert not Path(file).exists()
    other.unlink()  # files of other launches stay


def test_a_killed_mpirun_is_named(start: Callable[..., Play]) -> None:
    play = start()
    play.until()
    os.kill(above(play, "worker-0")["mpirun"], signal.SIGKILL)
    assert play.end() == 1
    assert play.left() == {}
    what = rf"\S*mpirun on {HOST} was killed by signal 9 \(SIGKILL\)\n"
    assert re.search(rf"hpcps: run \w+ \(faults\): {what}", play.text), play.text
    assert play.run.failures == ()


@with_proxy
@pytest.mark.soak  # `tests/launch/test_supervise.py` has the same with a stand-in for the launcher
def test_a_stopped_proxy_does_not_hold_the_command_up(start: Callable[..., Play], continued: list[int]) -> None:
    play = start("--set", "train.epochs=300")
    play.until()
    pid = above(play, "worker-0")["proxy"]
    continued.append(pid)
    os.kill(pid, signal.SIGSTOP)
    within(120, lambda: play.run.done, "the end of the run")
    assert play.end(60) == 0, play.text
    assert play.left() == {}
    assert_quiet(play.text)
    stopped = rf"stopped on {HOST}: hydra_pmi_proxy \(pid {pid}\)"
    assert re.search(rf"hpcps: \S*mpirun has not ended .*{stopped}", play.text), play.text


def test_a_killed_command_leaves_no_rank_for_long(start: Callable[..., Play]) -> None:
    """Batch systems kill what is left after some 20 seconds."""
    play = start(*ENDLESS_ROUND)
    within(60, lambda: play.lines("worker-0"), "a record")
    play.process.kill()
    play.process.wait()
    within(40, lambda: not play.left(), f"the end of {play.left()}")


def test_a_batch_system_does_not_wait_for_an_endless_round(start: Callable[..., Play]) -> None:
    play = start(*ENDLESS_ROUND)
    within(60, lambda: play.lines("worker-0"), "a record")
    play.process.terminate()
    assert play.end(20) == 143
    assert play.left() == {}
