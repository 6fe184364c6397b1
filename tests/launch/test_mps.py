"""MPS for the ranks of a host: real processes, with programs that replace NVIDIA's control program and library.

Nothing here uses a GPU: the behaviour of CUDA is that of its documentation.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from environments import ROOT, interpreter
from mps_machine import FOUR, PATIENCE, SHORT_PATIENCE, plan_of, within, world_of
from python_libraries import library_path

from hpcps.launch import local_rank, mps
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan, PlannedRun
from hpcps.spec.schema import Run

pytestmark = pytest.mark.usefixtures("starts_processes")

PAIR = world_of("worker", "worker")


def test_the_first_rank_starts_the_daemon_and_its_guard_stops_it(machine):
    members = machine.start(plan_of(world_of(*FOUR)), *reversed(range(5)), CUDA_VISIBLE_DEVICES="1,0")
    assert [member.said["used"] for member in members] == [False] + [True] * 4, "a server does not train"
    (folder,) = machine.room.iterdir()
    where = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    assert [member.said["changed"] for member in members] == [{}] + [where] * 4
    assert folder.stat().st_mode & 0o777 == 0o700
    (daemon,) = machine.daemons()
    assert machine.noted == ["asked to start", f"started {daemon} None {folder}/log"], "once; it sees all GPUs"
    for member in members[:4]:
        assert member.leave() == ""
    assert machine.daemons() == [daemon]
    assert members[4].leave() == ""
    assert machine.noted[2:] == [f"quit {daemon}"]
    assert list(machine.room.iterdir()) == []


@pytest.mark.parametrize("name", ["conf.plan.json", "next.plan.json"])
def test_the_next_launch_stops_the_daemon_that_a_killed_guard_left(machine, name):
    (first,) = machine.start(plan_of(PAIR), 0)
    assert first.said["used"]
    (left,) = machine.daemons()
    first.kill()
    # The answer in the folder of the same plan is out of date: the second rank waits for the next one.
    second, again = machine.start(plan_of(PAIR), 1, 0, name=name)
    assert second.said == again.said
    assert again.said["used"]
    (daemon,) = machine.daemons()
    assert daemon != left
    assert [line for line in machine.noted if line.startswith("quit")] == [f"quit {left}"]
    assert len(list(machine.room.iterdir())) == 1
    second.leave()
    again.leave()
    machine.wait_until_clean()


def test_a_launch_leaves_the_daemon_of_another_launch_alone(machine):
    (first,) = machine.start(plan_of(PAIR), 0)
    assert first.said["used"]
    (other,) = machine.start(plan_of(PAIR), 0, name="other.plan.json")
    assert other.said["used"]
    assert other.said != first.said
    assert len(machine.daemons()) == 2
    first.leave()
    assert len(machine.daemons()) == 1
    other.leave()
    machine.wait_until_clean()


def test_the_first_rank_is_killed_while_the_daemon_starts(machine):
    (first,) = machine.start(plan_of(PAIR), 0, STAND_IN_MPS="is slow")
    within(30, lambda: machine.noted, lambda: "the daemon does not start")
    first.kill()
    within(30, machine.daemons, lambda: machine.noted)
    (again,) = machine.start(plan_of(PAIR), 0)
    assert again.said["used"]
    assert len(machine.daemons()) == 1
    again.leave()
    machine.wait_until_clean()


def test_a_daemon_that_does_not_quit_is_killed(machine):
    (rank,) = machine.start(plan_of(PAIR), 0, STAND_IN_MPS="stays")
    assert rank.said["used"]
    assert machine.daemons()
    rank.leave()
    machine.wait_until_clean()


def test_a_daemon_that_was_there_is_used_and_stays(machine):
    pipe = machine.folder / "site"
    pipe.mkdir()
    assert machine.command(pipe, "-d") == 0
    (daemon,) = machine.daemons()
    members = machine.start(plan_of(PAIR), 0, 1, CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    assert [(member.said["used"], member.said["changed"]) for member in members] == [(True, {})] * 2
    for member in members:
        assert member.leave() == ""
    assert machine.daemons() == [daemon]
    assert [line for line in machine.noted if line.startswith(("asked", "quit"))] == ["asked to start"]
    assert list(machine.room.iterdir()) == []


def test_a_daemon_at_the_default_place(machine, monkeypatch):
    pipe = machine.folder / "default"
    pipe.mkdir()
    monkeypatch.setattr(mps, "DEFAULT_PIPE", str(pipe))
    assert machine.command(pipe, "-d") == 0
    assert mps.start(machine.folder, ["0"], machine.environment, PATIENCE) == ({}, "")


def test_the_folder_of_a_dead_daemon_is_not_used(machine):
    pipe = machine.folder / "site"
    pipe.mkdir()
    (pipe / f"{mps.CONTROL}.pid").write_text(f"{os.getpid()}")
    (rank,) = machine.start(plan_of(PAIR), 0, CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    assert rank.said["used"]
    assert rank.said["changed"]["CUDA_MPS_PIPE_DIRECTORY"].startswith(str(machine.room))


def test_a_whole_run(machine, driver):
    """A worker, a validator and a server run over mpirun; only the driver is replaced."""
    patch = machine.folder / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        f"import hpcps.launch.local_rank as rank\nrank.DRIVER = {str(driver / 'nvidiactl')!r}\n"
    )
    experiment = machine.folder / "shared.toml"
    experiment.write_text(
        'name = "shared"\n[topology]\nworkers = 1\n[model]\nname = "mlp"\n[data]\nname = "digits"\nlimit = 96\n'
        "test_limit = 32\n[train]\nepochs = 1\nbatch_size = 8\n"
    )
    environment = {**machine.environment, "PYTHONPATH": f"{patch}:{ROOT}"}
    command = [str(interpreter("mpich")), "-m", "hpcps", "run", str(experiment), "--results", str(machine.folder / "r")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    records = machine.folder.glob("r/*/runs/*/records/*.jsonl")
    starts = {path.stem: json.loads(path.read_text().splitlines()[0]) for path in records}
    assert {name: line["mps"] for name, line in starts.items()} == dict.fromkeys(
        ("worker-0", "validator-0", "server-0"), False
    ), "torch trained on the CPU all the same"
    assert [line.split()[0] for line in machine.noted] == ["asked", "started", "quit"]
    assert not machine.daemons()
    assert list(machine.room.glob("hpcps-mps-*")) == []


TROUBLE = {
    "no program": ({"PATH": os.environ["PATH"]}, "there is no nvidia-cuda-mps-control on PATH"),
    "it fails": ({"STAND_IN_MPS": "fails"}, "nvidia-cuda-mps-control -d: Only root may do that"),
    "it hangs": ({"STAND_IN_MPS": "hangs"}, "nvidia-cuda-mps-control -d: it does not end"),
    "prohibited": ({"STAND_IN_CUDA": "prohibited"}, "GPU 0 cannot be used: cuCtxCreate_v2: CUDA_ERROR_DEVICE_UNAVAIL"),
    "CUDA hangs": ({"STAND_IN_CUDA": "hangs"}, "GPU 0 cannot be used: it does not end"),
    "CUDA crashes": ({"STAND_IN_CUDA": "crashes"}, "GPU 0 cannot be used: status -6"),
    "CUDA does not want it": ({"STAND_IN_CUDA": "passes by"}, "GPU 0 cannot be used: CUDA does not use MPS"),
    "no library": ({"LD_LIBRARY_PATH": library_path()}, "GPU 0 cannot be used: libcuda.so.1: cannot open"),
    "one GPU of two": ({"STAND_IN_MISSING_GPU": "1"}, "GPU 1 cannot be used: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"),
}
TELLING = "one GPU of two"
"""It needs most of the others' conditions: a daemon that starts, CUDA, and an answer for each GPU."""
NAMES = [TELLING, *(pytest.param(name, marks=pytest.mark.soak) for name in TROUBLE if name != TELLING)]


@pytest.mark.parametrize("name", NAMES)
def test_without_mps_the_run_goes_on_and_one_process_says_why(machine, name):
    variables, why = TROUBLE[name]
    gpus = ("0", "0", "1") if name == "one GPU of two" else None
    machine.patience = SHORT_PATIENCE if "hangs" in variables.values() else PATIENCE
    members = machine.start(plan_of(world_of(*["worker"] * 3, gpus=gpus)), 2, 1, 0, **variables)
    assert [(member.said["used"], member.said["changed"]) for member in members] == [(False, {})] * 3
    assert [member.said["gpu"] for member in members] == ["1", "0", "0"] if gpus else [None] * 3
    assert not machine.daemons()
    for member in members[:2]:
        assert member.leave() == ""
    (line,) = members[2].leave().splitlines()
    assert line.startswith("hpcps: processes of ")
    assert f" share a GPU without MPS, which is slower: {why}" in line
    assert machine.noted.count("asked to start") <= 1, "the others wait for the answer"
    left = [path.name for folder in machine.room.iterdir() for path in folder.iterdir()]
    assert left == (["log"] if "logs in" in line else [])


def test_an_existing_daemon_that_does_not_work_is_named(machine):
    pipe = machine.folder / "site"
    pipe.mkdir()
    assert machine.command(pipe, "-d") == 0
    more = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "STAND_IN_CUDA": "prohibited"}
    (rank,) = machine.start(plan_of(PAIR), 0, **more)
    (none,) = rank.said["changed"].values()
    assert list(rank.said["changed"]) == ["CUDA_MPS_PIPE_DIRECTORY"], "CUDA would look for it there all the same"
    assert not Path(none).exists()
    assert f"with the MPS daemon of {pipe}, which was already running, GPU 0 cannot be used" in rank.leave()
    assert len(machine.daemons()) == 1


def test_a_first_rank_that_never_answers(machine):
    machine.patience = -4.5
    (rank,) = machine.start(plan_of(PAIR), 1)
    assert not rank.said["used"]
    assert rank.leave() == "", "the first rank prints the reason"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_folder_that_others_may_write_to(machine, rank):
    folder = mps.folder_of(machine.folder / "conf.plan.json", machine.environment)
    folder.mkdir()
    folder.chmod(0o755)
    (member,) = machine.start(plan_of(PAIR), rank)
    assert not member.said["used"]
    said = member.leave()
    assert (f"{folder} is not a private folder of this user: remove it" in said) == (rank == 0)
    assert not machine.noted
    assert folder.exists()


def test_more_processes_than_mps_takes(machine):
    (rank,) = machine.start(plan_of(world_of(*["worker"] * 49)), 0)
    assert not rank.said["used"]
    assert list(rank.said["changed"]) == ["CUDA_MPS_PIPE_DIRECTORY"], "CUDA would find a daemon that is there already"
    assert not Path(rank.said["changed"]["CUDA_MPS_PIPE_DIRECTORY"]).exists()
    assert "49 processes share GPU 0, MPS supports 48" in rank.leave()
    assert list(machine.room.iterdir()) == []


ALONE = {
    "a GPU each": (plan_of(world_of("worker", "worker", gpus=("0", "1"))), 0, {}),
    "a server": (plan_of(world_of(*FOUR)), 4, {}),
    "one that trains": (plan_of(world_of("worker", "server", "server")), 0, {}),
    "on the CPU": (plan_of(PAIR, device="cpu"), 0, {}),
    "switched off": (plan_of(PAIR, use_mps="off"), 0, {}),
    "no visible GPU": (plan_of(PAIR), 0, {"CUDA_VISIBLE_DEVICES": ""}),
    "of unknown rank": (plan_of(PAIR), None, {}),
    "no driver": (plan_of(PAIR), 0, {}),
}


@pytest.mark.parametrize("name", ALONE)
def test_nothing_happens_where_no_gpu_is_shared(machine, driver, monkeypatch, name):
    plan, rank, variables = ALONE[name]
    monkeypatch.setattr(local_rank, "DRIVER", "/nowhere" if name == "no driver" else str(driver / "nvidiactl"))
    environment = {**machine.environment, **variables}
    if rank is not None:
        environment["HPCPS_RANK"] = str(rank)
    before = dict(environment)
    assert local_rank.share_gpu(plan, machine.folder / "plan", environment) == (False, None)
    assert environment == before
    assert list(machine.room.iterdir()) == []
    assert not machine.noted


def test_a_rank_without_a_planned_gpu_uses_the_first_visible_one():
    world = world_of("worker", "worker", gpus=(None, "2"))
    assert set(local_rank.gpu_users(plan_of(world), world[0], {"CUDA_VISIBLE_DEVICES": "2,3"}).values()) == {"2"}
    assert set(local_rank.gpu_users(plan_of(world), world[0], {}).values()) == {"0", "2"}


def test_a_path_too_long_for_a_socket_is_not_taken(tmp_path):
    long = {"TMPDIR": f"/tmp/{'x' * 80}"}
    assert mps.folder_of(tmp_path / "plan", long).parent == Path("/tmp")
    assert mps.folder_of(tmp_path / "plan", {}) != mps.folder_of(tmp_path / "another", {})


@pytest.mark.parametrize(
    ("buffers", "roles"),
    [("staged", ["worker", "worker", "validator"]), ("auto", ["worker", "worker", "validator", "server"])],
)
def test_the_plan_names_the_users_of_a_gpu(buffers, roles):
    """A server uses one where updates may stay in the memory of a GPU, as they may unless the file says otherwise."""
    tables = {"name": "x", "train": {"epochs": 1}, "model": {"name": "mlp"}, "data": {"name": "digits"}}
    transport = {} if buffers == "auto" else {"device_buffers": buffers}
    run = Run.model_validate({**tables, "topology": {"workers": 2}, "transport": transport})
    world = place(run.topology)
    plan = Plan(world, (PlannedRun("r", "r", "/", {"run": run.model_dump(mode="json")}),))
    assert [member.role for member in local_rank.gpu_users(plan, world[0], {})] == roles
