"""Where MPS is not to be had, or not to be used: the run goes on, and says so where somebody might care."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mps_machine import FOUR, PATIENCE, SHORT_PATIENCE, plan_of, within, world_of

from hpcps.launch.mps import membership
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.spec.schema import Run

TROUBLE = {
    "no program": ({"PATH": os.environ["PATH"]}, "there is no nvidia-cuda-mps-control on PATH"),
    "it fails": ({"STAND_IN_MPS": "fails"}, "nvidia-cuda-mps-control -d: Only root may do that"),
    "it hangs": ({"STAND_IN_MPS": "hangs"}, "nvidia-cuda-mps-control -d: it does not end"),
    "prohibited": ({"STAND_IN_CUDA": "prohibited"}, "GPU 0 cannot be used: cuCtxCreate_v2: CUDA_ERROR_DEVICE_UNAVAIL"),
    "CUDA hangs": ({"STAND_IN_CUDA": "hangs"}, "GPU 0 cannot be used: a process that tests it does not end"),
    "CUDA crashes": ({"STAND_IN_CUDA": "crashes"}, "GPU 0 cannot be used: status -6"),
    "CUDA does not want it": ({"STAND_IN_CUDA": "passes by"}, "GPU 0 cannot be used: CUDA does not use MPS"),
    "no library": ({"LD_LIBRARY_PATH": ""}, "GPU 0 cannot be used: libcuda.so.1: cannot open"),
    "one GPU of two": ({"STAND_IN_MISSING_GPU": "1"}, "GPU 1 cannot be used: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"),
}
TELLING = "one GPU of two"
"""It needs most of what the others need: a daemon that starts, CUDA, and an answer for each GPU."""
NAMES = [TELLING, *(pytest.param(name, marks=pytest.mark.soak) for name in TROUBLE if name != TELLING)]


@pytest.mark.parametrize("name", NAMES)
def test_without_mps_the_run_goes_on_and_one_process_says_why(machine, name):
    variables, why = TROUBLE[name]
    gpus = ("0", "0", "1") if name == "one GPU of two" else None
    machine.patience = SHORT_PATIENCE if "hangs" in variables.values() else PATIENCE
    members = machine.start(plan_of(world_of(*["worker"] * 3, gpus=gpus)), 2, 1, 0, **variables)
    assert [(member.said["used"], member.said["changed"]) for member in members] == [(False, {})] * 3
    assert [member.said["gpu"] for member in members] == ["1", "0", "0"] if gpus else [None] * 3
    assert not machine.daemons(), "it is of no use"
    for member in members[:2]:
        assert member.leave() == ""
    (line,) = members[2].leave().splitlines()
    assert line.startswith("hpcps: processes of ")
    assert f" share a GPU without MPS, which is slower: {why}" in line
    within(30, lambda: not machine.keepers(), machine.keepers)
    assert machine.noted.count("asked to start") <= 1, "the others are told"
    left = [path.name for folder in machine.room.iterdir() for path in folder.iterdir()]
    assert left == (["log"] if "logs in" in line else [])


def test_an_existing_daemon_that_does_not_work_is_named(machine):
    pipe = machine.folder / "site"
    pipe.mkdir()
    assert machine.command(pipe, "-d") == 0
    more = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "STAND_IN_CUDA": "prohibited"}
    (rank,) = machine.start(plan_of(world_of("worker", "worker")), 0, **more)
    (nobody,) = rank.said["changed"].values()
    assert list(rank.said["changed"]) == ["CUDA_MPS_PIPE_DIRECTORY"], "CUDA would look for it there all the same"
    assert not Path(nobody).exists()
    assert f"with the MPS daemon of {pipe}, which was already running, GPU 0 cannot be used" in rank.leave()
    assert len(machine.daemons()) == 1


def test_a_keeper_that_ends_without_a_word(machine, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    plan, environment = plan_of(world_of("worker", "worker")), {**machine.environment, "HPCPS_RANK": "0"}
    before = dict(environment)
    assert membership.join(plan, machine.folder / "plan", environment) == membership.Membership()
    assert environment == before
    assert "the process that should start MPS has ended without an answer" in capsys.readouterr().err


def test_a_keeper_that_never_answers(machine, monkeypatch, capsys):
    monkeypatch.setattr(membership, "TIMEOUT", -4.5)
    monkeypatch.setattr(membership, "_start_keeper", lambda *arguments, again: False)
    plan, environment = plan_of(world_of("worker", "worker")), {**machine.environment, "HPCPS_RANK": "0"}
    assert membership.join(plan, machine.folder / "plan", environment) == membership.Membership()
    assert "answers" in capsys.readouterr().err


def test_a_folder_that_others_may_write_to(machine):
    plan = plan_of(world_of("worker", "worker"))
    folder = membership._folder(machine.folder / "conf.plan.json", machine.environment)
    folder.mkdir()
    folder.chmod(0o755)
    (rank,) = machine.start(plan, 0)
    assert not rank.said["used"]
    assert f"{folder} is not a private folder of this user: remove it" in rank.leave()
    assert not machine.noted


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
    "two hosts": (plan_of([Rank(0, "worker", 0, "a"), Rank(1, "worker", 1, "b")]), 0, {}),
    "on the processor": (plan_of(world_of("worker", "worker"), device="cpu"), 0, {}),
    "not wanted": (plan_of(world_of("worker", "worker"), mps="off"), 0, {}),
    "no GPU to be seen": (plan_of(world_of("worker", "worker")), 0, {"CUDA_VISIBLE_DEVICES": ""}),
    "of unknown rank": (plan_of(world_of("worker", "worker")), None, {}),
}


@pytest.mark.parametrize("name", ALONE)
def test_nothing_happens_where_no_gpu_is_shared(machine, name):
    plan, rank, variables = ALONE[name]
    environment = {**machine.environment, **variables}
    if rank is not None:
        environment["HPCPS_RANK"] = str(rank)
    before = dict(environment)
    assert membership.join(plan, machine.folder / "plan", environment) == membership.Membership()
    assert environment == before
    assert list(machine.room.iterdir()) == []
    assert not machine.noted


def test_nothing_happens_without_a_driver(machine):
    """All that the runtime does before it lets a rank begin, new imports included, takes less than a millisecond."""
    program = (
        "import os, sys, time; from pathlib import Path; from hpcps.launch.plan import Plan, PlannedRun, Rank\n"
        "train = {'device': 'auto', 'mps': 'auto'}\n"
        "run = PlannedRun('r', 'r', '/', {'run': {'train': train}})\n"
        "plan = Plan((Rank(0, 'worker', 0, 'here'), Rank(1, 'worker', 1, 'here')), (run,))\n"
        "began = time.perf_counter()\n"
        "import hpcps.launch.mps as mps\n"
        "mps.DRIVER = '/nowhere'\n"
        "assert mps.share_gpu(plan, Path('plan')) is None\n"
        "assert 'hpcps.launch.mps.membership' not in sys.modules\n"
        "print(time.perf_counter() - began)\n"
    )
    environment = {**machine.environment, "HPCPS_RANK": "0"}
    command = [sys.executable, "-c", program]
    took = [float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout) for _ in range(9)]
    assert min(took) < 1e-3
    assert list(machine.room.iterdir()) == []
    assert not machine.noted


def test_who_sees_a_gpu_first_shares_it_with_those_who_are_given_it():
    world = world_of("worker", "worker", gpus=(None, "2"))
    assert set(membership._trainers(plan_of(world), world[0], {"CUDA_VISIBLE_DEVICES": "2,3"}).values()) == {"2"}
    assert set(membership._trainers(plan_of(world), world[0], {}).values()) == {"0", "2"}


def test_a_path_too_long_for_a_socket_is_not_taken(tmp_path):
    long = {"TMPDIR": f"/tmp/{'x' * 80}"}
    assert membership._folder(tmp_path / "plan", long).parent == Path("/tmp")
    assert membership._folder(tmp_path / "plan", {}) != membership._folder(tmp_path / "another", {})


@pytest.mark.parametrize(
    ("buffers", "roles"),
    [("staged", ["worker", "worker", "validator"]), ("auto", ["worker", "worker", "validator", "server"])],
)
def test_the_plan_has_what_it_looks_at(buffers, roles):
    """`join` reads the plan without the schema, which would cost every rank its import.

    A server counts where updates may stay in the memory of a GPU, as they may unless the file says otherwise.
    """
    tables = {"name": "x", "train": {"epochs": 1}, "model": {"name": "mlp"}, "data": {"name": "digits"}}
    transport = {} if buffers == "auto" else {"device_buffers": buffers}
    run = Run.model_validate({**tables, "topology": {"workers": 2}, "transport": transport})
    world = place(run.topology)
    plan = Plan(world, (PlannedRun("r", "r", "/", {"run": run.model_dump(mode="json")}),))
    assert [member.role for member in membership._trainers(plan, world[0], {})] == roles
