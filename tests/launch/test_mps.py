"""MPS for the ranks of a host, from the first to the last: real processes, stand-ins for what is NVIDIA's.

Nothing here has touched a GPU: that CUDA then does what is documented is not tested.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from environments import ROOT, interpreter
from mps_machine import FOUR, PATIENCE, plan_of, within, world_of

from hpcps.launch import supervise
from hpcps.launch.mps import keeper, membership


def test_whoever_comes_first_starts_it_and_the_last_to_leave_ends_it(machine):
    members = machine.start(plan_of(world_of(*FOUR)), *range(5), CUDA_VISIBLE_DEVICES="1,0")
    *trainers, server = members
    assert [member.said["used"] for member in members] == [True] * 4 + [False], "a server does not train"
    (folder,) = machine.room.iterdir()
    where = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    assert [member.said["changed"] for member in members] == [where] * 4 + [{}]
    assert folder.stat().st_mode & 0o777 == 0o700
    (daemon,) = machine.daemons()
    assert machine.noted == ["asked to start", f"started {daemon} None {folder}/log"], "once; it sees all GPUs"

    assert server.leave() == ""
    for member in trainers[:3]:
        assert member.leave() == ""
    (late,) = machine.start(plan_of(world_of(*FOUR)), 1)
    assert late.said["changed"] == where
    late.leave()
    assert machine.daemons() == [daemon]
    trainers[3].leave()
    machine.wait_until_clean()
    assert machine.noted[2:] == [f"quit {daemon}"]


def test_many_at_once_again_and_again(machine):
    """Those who come while the last ones are being cleaned up after wait, and start anew."""
    plan = plan_of(world_of(*["worker"] * 8))
    for _ in range(3):
        members = machine.start(plan, *range(8))
        assert all(member.said["used"] for member in members)
        assert len(machine.daemons()) == 1
        for member in members:
            member.tell_to_go()
    machine.wait_until_clean()
    started, quit = (sum(line.startswith(what) for line in machine.noted) for what in ("started", "quit"))
    assert started == quit >= 1
    assert sum(line == "asked to start" for line in machine.noted) == started


def test_who_comes_just_before_the_folder_goes_is_not_counted(tmp_path, monkeypatch):
    folder = tmp_path / "mps"

    def too_late(file, operation):
        shutil.rmtree(folder)

    monkeypatch.setattr(fcntl, "flock", too_late)
    assert membership._enter(folder) is None
    monkeypatch.undo()
    with membership._enter(folder) as file:
        assert file.name == str(folder / "users")


def test_nobody_is_counted_before_all_else_is_gone(tmp_path, monkeypatch):
    folder, gone = tmp_path / "mps", []
    unlink = Path.unlink

    def watched(path, **options):
        assert membership._enter(folder) is None
        gone.append(path.name)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", watched)
    monkeypatch.setenv("PATH", "")
    membership._enter(folder).close()
    keeper.keep(folder, PATIENCE, ["0"])
    assert set(gone) == {"answer", "keeper", "users"}
    assert not folder.exists()


def test_killed_ranks_count_no_longer(machine):
    first, second, third = machine.start(plan_of(world_of(*["worker"] * 3)), 0, 1, 2)
    assert first.said["used"]
    assert second.said["used"]
    assert third.said["used"]
    first.kill()
    second.kill()
    time.sleep(0.3)
    (daemon,) = machine.daemons()
    third.kill()
    machine.wait_until_clean()
    assert machine.noted[-1] == f"quit {daemon}"


def test_the_first_is_killed_while_it_waits(machine):
    (first,) = machine.start(plan_of(world_of("worker", "worker")), 0, STAND_IN_MPS="is slow")
    within(30, lambda: machine.noted, lambda: "nobody starts it")
    first.kill()
    machine.wait_until_clean()
    assert [line.split()[0] for line in machine.noted] == ["asked", "started", "quit"]


def test_a_batch_system_tells_all_to_end_and_ranks_take_their_time(machine):
    (rank,) = machine.start(plan_of(world_of("worker", "worker")), 0)
    assert rank.said["used"]
    (one,) = machine.keepers()
    os.kill(one, signal.SIGTERM)
    time.sleep(0.3)
    assert machine.keepers() == [one]
    assert machine.daemons()
    rank.leave()
    machine.wait_until_clean()


def test_the_keeper_is_killed(machine):
    plan = plan_of(world_of("worker", "worker"))
    (first,) = machine.start(plan, 0)
    assert first.said["used"]
    (one,) = machine.keepers()
    os.kill(one, signal.SIGKILL)
    within(30, lambda: not machine.keepers(), lambda: "it is still there")
    (second,) = machine.start(plan, 1)
    assert second.said == first.said
    first.leave()
    assert len(machine.daemons()) == 1
    second.leave()
    machine.wait_until_clean()
    assert machine.noted.count("asked to start") == 1, "the daemon was taken over"


def test_a_daemon_that_does_not_quit_is_killed(machine):
    (rank,) = machine.start(plan_of(world_of("worker", "worker")), 0, STAND_IN_MPS="stays")
    assert rank.said["used"]
    assert machine.daemons()
    rank.leave()
    machine.wait_until_clean()


def test_the_keeper_is_done_before_its_launch_loses_patience():
    """Killed in the middle of it, it would leave its folder behind."""
    assert keeper.QUIT_WITHIN + keeper.GONE_WITHIN <= supervise._OUTLIVE - 1.0


@pytest.mark.parametrize("known_by", ["its answer", "its pid"])
def test_a_daemon_that_was_there_is_used_and_stays(machine, known_by):
    pipe = machine.folder / "site"
    pipe.mkdir()
    assert machine.command(pipe, "-d") == 0
    (daemon,) = machine.daemons()
    more = {"PATH": os.environ["PATH"]} if known_by == "its pid" else {}
    if known_by == "its answer":
        (pipe / f"{keeper.CONTROL}.pid").unlink()
        (pipe / f"{keeper.CONTROL}.pid").write_text("1")  # as one of another container would be
    members = machine.start(plan_of(world_of("worker", "worker")), 0, 1, CUDA_MPS_PIPE_DIRECTORY=str(pipe), **more)
    assert [(member.said["used"], member.said["changed"]) for member in members] == [(True, {})] * 2
    for member in members:
        assert member.leave() == ""
    within(30, lambda: not machine.keepers(), machine.keepers)
    assert machine.daemons() == [daemon]
    assert machine.command(pipe, say="get_server_list\n") == 0
    assert [line for line in machine.noted if line.startswith(("asked", "quit"))] == ["asked to start"]


def test_a_daemon_at_the_default_place(machine, monkeypatch):
    pipe = machine.folder / "default"
    pipe.mkdir()
    monkeypatch.setattr(keeper, "DEFAULT_PIPE", str(pipe))
    assert machine.command(pipe, "-d") == 0
    mps = keeper.Mps(machine.folder, machine.environment, PATIENCE)
    assert mps.offer(["0"]) == ({}, "")
    assert mps.ours is None


def test_what_a_dead_daemon_left_at_the_users_place_is_no_daemon(machine):
    pipe = machine.folder / "site"
    pipe.mkdir()
    (pipe / f"{keeper.CONTROL}.pid").write_text(f"{os.getpid()}")
    (rank,) = machine.start(plan_of(world_of("worker", "worker")), 0, CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    assert rank.said["used"]
    assert rank.said["changed"]["CUDA_MPS_PIPE_DIRECTORY"].startswith(str(machine.room))


REPEATED = [pytest.param(end, marks=pytest.mark.soak) for end in ("done", "the command is killed")]


@pytest.mark.parametrize("end", ["a worker is killed", *REPEATED])
def test_a_whole_run(machine, driver, end):
    """Two workers, a validator and a server, by mpirun; the real thing but for the driver."""
    patch = machine.folder / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        f"import hpcps.launch.mps as mps\nmps.DRIVER = {str(driver / 'nvidiactl')!r}\n"
    )
    experiment = machine.folder / "shared.toml"
    experiment.write_text(
        'name = "shared"\n[topology]\nworkers = 2\n[model]\nname = "mlp"\n[data]\nname = "digits"\nlimit = 96\n'
        f"test_limit = 32\n[train]\nepochs = {1 if end == 'done' else 20_000}\nbatch_size = 8\n"
    )
    environment = {**machine.environment, "PYTHONPATH": f"{patch}:{ROOT}"}
    command = [str(interpreter("mpich")), "-m", "hpcps", "run", str(experiment), "--results", str(machine.folder / "r")]
    output = machine.folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        within(60, lambda: len(starts_of(machine)) == 4, output.read_text)
        starts = starts_of(machine)
        if end == "a worker is killed":
            assert len(machine.daemons()) == 1
            os.kill(starts["worker-1"]["pid"], signal.SIGKILL)
        if end == "the command is killed":
            process.kill()
        assert (process.wait(60) == 0) == (end == "done"), output.read_text()
    finally:
        process.kill()
        process.wait()
    machine.wait_until_clean()
    # They came under MPS, and then torch trained on the CPU all the same.
    assert [line["mps"] for line in starts.values()] == [False] * 4
    assert [line.split()[0] for line in machine.noted] == ["asked", "started", "quit"]


def starts_of(machine):
    """Return the first lines of all records."""
    records = {path.stem: path.read_text() for path in machine.folder.glob("r/*/runs/*/records/*.jsonl")}
    return {name: json.loads(text.splitlines()[0]) for name, text in records.items() if "\n" in text}
