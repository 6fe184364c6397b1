"""Processes that are killed while MPI sends the memory of their device."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fault_runs import SOON, Play, assert_blamed, assert_quiet, hpcps, within

BUFFERS = Path(__file__).parents[1] / "buffers"
TOPOLOGY = ("--set", "topology={servers=2, validators=1, workers=2}", "--set", "validation.rule={kind='zeno'}")
ASYNC = (*TOPOLOGY[:2], "--set", "validation.rule={kind='zeno++'}", "--set", "train.mode=async")
SOAK = [
    pytest.param(settings, who, marks=pytest.mark.soak)
    for settings in (TOPOLOGY, ASYNC)
    for who in ("worker-1", "validator-0", "server-1")[settings is TOPOLOGY :]
]
ATTACK = ("--set", "topology={servers=2, validators=1, workers=3}", "--set", "validation.rule={kind='average'}")
ATTACK += ("--set", "attack={kind='ipm', rate=0.4, epsilon=0.1}")
SOAK += [pytest.param(ATTACK, "adversary-0", marks=pytest.mark.soak)]


@pytest.fixture(autouse=True)
def _on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCPS_DEVICE", "late_device:open_device")
    path = [os.environ.get("PYTHONPATH", ""), str(BUFFERS.parents[1]), str(BUFFERS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))


def used(play: Play, process: str) -> str:
    (start,) = (line for line in play.lines(process) if line["event"] == "start")
    return str(start["device_buffers"])


@pytest.mark.parametrize(("settings", "who"), [(TOPOLOGY, "worker-1"), *SOAK])
def test_a_process_whose_device_memory_mpi_sends_is_killed(
    settings: tuple[str, ...], who: str, start: Callable[..., Play]
) -> None:
    before = set(os.listdir("/dev/shm"))
    play = start(*settings, "--set", "transport.device_buffers=direct")
    # An asynchronous server records no rounds.
    play.until("worker-1" if settings is ASYNC else who)
    assert used(play, "worker-1") == "direct"
    assert used(play, who) == ("staged" if who == "adversary-0" else "direct"), (
        "the adversary's vectors are on the host"
    )
    os.kill(play.pid(who), signal.SIGKILL)
    assert play.end() > 0
    within(SOON, lambda: not play.left(), "the end of the ranks")
    assert_quiet(play.text)
    assert_blamed(play.text, play.run, who, r"the process was killed by signal 9 \(SIGKILL\)")
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "hpcps" in name]


@pytest.mark.soak
@pytest.mark.parametrize("settings", [TOPOLOGY, ASYNC])
def test_a_killed_run_goes_on_from_its_checkpoint(
    settings: tuple[str, ...], start: Callable[..., Play], experiment: Path, tmp_path: Path
) -> None:
    """Checkpoints hold copies of what is on devices; another device, or none, goes on from them.

    The result of an asynchronous run depends on the order of arrivals.
    """
    arguments = (*settings, "--set", "train.epochs=120", "--set", "checkpoint.every=10")
    play = start(*arguments, "--set", "transport.device_buffers=direct")
    within(120, lambda: list(play.results.glob("*/runs/*/checkpoints/*/manifest.json")), "a checkpoint")
    os.kill(play.pid("server-0"), signal.SIGKILL)
    assert play.end() > 0
    within(SOON, lambda: not play.left(), "the end of the ranks")
    last = start(*arguments, "--set", "transport.device_buffers=direct")
    assert last.end(200) == 0, last.text
    assert used(last, "worker-0") == "direct"
    starts = (last.run.path / "records" / "server-0.jsonl").read_text()
    assert '"continues"' in starts
    if settings is ASYNC:
        assert '"diverged"' not in starts
        return
    done = hpcps("run", experiment, *arguments, "--set", "transport.kind=inproc", "--results", tmp_path / "other")
    assert done.returncode == 0, done.stderr
    (other,) = (tmp_path / "other").glob("*/runs/*")
    for shard in sorted((other / "final").iterdir()):
        assert np.array_equal(np.load(shard), np.load(last.run.path / "final" / shard.name)), shard.name
