"""What a launch makes of what it finds: `auto` takes what works and says why, and what is demanded is not replaced."""

import json
import os
import sys
from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.launch.detect import detect_mpi
from hpcps.launch.gpu_mpi import DeviceTrials, try_device_memory
from hpcps.launch.launchers import Job, Launch
from hpcps.launch.plan import ACCEPTED, UNTRIED, Plan, Rank
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run

pytestmark = pytest.mark.usefixtures("starts_processes")

HERE = Path(__file__).parent
FILE = small_experiment(
    "buffers", {"topology.validators": 0, "topology.workers": 1, "transport.kind": "mpi", "train.epochs": 1}
)


@pytest.fixture
def run(tmp_path, use, capfd):
    """Execute the experiment on a device; return the exit status, what it printed, and a record's first line."""

    def execute(device, *settings):
        file, results = tmp_path / "buffers.toml", tmp_path / f"{device}{len(settings)}"
        file.write_text(FILE)
        use(device)
        words = ["run", str(file), "--results", str(results)]
        status = main([*words, *(word for setting in settings for word in ("--set", setting))])
        starts = [path.read_text().partition("\n")[0] for path in results.glob("*/runs/*/records/server-0.jsonl")]
        return status, "".join(capfd.readouterr()), json.loads(starts[0]) if starts else None

    return execute


def test_auto_takes_mpi_where_that_works(run):
    status, said, found = run("open_device")
    assert status == 0
    assert "copied" not in said
    assert (found["device_buffers"], found["device_buffers_direct"]) == ("direct", ["worker-0"])
    assert found["device_buffers_why"] == "MPI takes the memory of this device"


def test_auto_copies_through_the_host_where_nothing_works_and_says_why_once(run):
    status, said, found = run("BadPointer")
    assert status == 0
    assert found["device_buffers"] == "staged"
    assert "through MPI: mpirun " in found["device_buffers_why"]
    assert (
        said.count(f"hpcps: updates and models on devices are copied through the host: {found['device_buffers_why']}\n")
        == 1
    )


@pytest.mark.soak
def test_without_a_device_there_is_nothing_to_say(run):
    status, said, found = run("NoDevice")
    assert status == 0
    assert "copied" not in said
    assert found["device_buffers"] == "staged"
    assert found["device_buffers_why"].startswith("this machine has no such device (")


def test_what_is_demanded_is_not_replaced(run):
    status, said, _ = run("NoDevice", "transport.device_buffers=direct")
    assert status == 1
    assert 'transport.device_buffers = "direct": this machine has no such device (worker-0 on localhost); ' in said


MPIRUN = Path(sys.executable).parent / "mpirun"
RUN = {
    "name": "buffers", "topology": {"workers": 2}, "model": {"name": "mlp"}, "data": {"name": "digits"},
    "train": {"epochs": 1},
}  # fmt: skip


@pytest.fixture
def use(monkeypatch):
    """Make processes use a device of `late_device`."""

    def name(device):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parents[1])]))
        monkeypatch.setenv("HPCPS_DEVICE", f"late_device:{device}")

    return name


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("open_device", ""),
        ("BadPointer", "through MPI: mpirun "),
        ("Forgetful", "through MPI: the memory came back changed"),
    ],
)
def test_ranks_of_a_trial_find_out_whether_mpi_takes_it(use, device, why):
    use(device)
    found = try_device_memory(detect_mpi(MPIRUN))
    assert found.startswith(why) if why else found == ACCEPTED


def test_nothing_is_tried_without_a_device(monkeypatch):
    monkeypatch.delenv("HPCPS_DEVICE", raising=False)
    if not os.path.exists("/dev/nvidiactl"):
        assert try_device_memory(detect_mpi(MPIRUN)) == "through MPI: there is no NVIDIA driver"
        assert memory_of_a_launch() == UNTRIED


def test_mpi_is_tried_with_the_launcher_of_the_launch(use, tmp_path):
    use("open_device")
    assert memory_of_a_launch(tmp_path) == "through MPI: mpirun cannot be started: No such file or directory"


def memory_of_a_launch(folder=Path("/nowhere")):
    """Return what the trials of a launch on this host, whose launcher is missing, find out."""
    world = tuple(Rank(rank, "worker", rank, "localhost") for rank in range(2))
    launcher, run = detect_mpi(MPIRUN).launcher, Run.model_validate(RUN)
    job = Job(Plan(world, ()), folder / "plan", folder / "conf", folder / "mpirun", Path(sys.executable))
    return DeviceTrials().device_memory([run], Launch(job, {}, ()), launcher)


@pytest.mark.parametrize(
    ("table", "values", "why"),
    [
        ("transport", {"device_buffers": "staged"}, 'transport.device_buffers = "staged"'),
        ("transport", {"kind": "inproc"}, 'transport.kind = "inproc"'),
        ("train", {"mode": "async"}, ""),
        ("train", {"device": "cpu"}, 'train.device = "cpu"'),
        ("model", {"backend": "mxnet"}, 'model.backend = "mxnet"'),
        ("train", {}, ""),
    ],
)
def test_what_keeps_buffers_on_the_host(table, values, why):
    tables = {**RUN, table: {**RUN.get(table, {}), **values}}
    if values.get("mode") == "async":
        tables["validation"] = {"rule": {"kind": "zeno++"}}
    assert unsuitable(Run.model_validate(tables)) == why
