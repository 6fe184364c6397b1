"""What a launch finds out about device memory before it relies on it, on devices that crash and lie."""

import os
import sys
from pathlib import Path

import pytest

from hpcps.launch.detect import detect_mpi
from hpcps.launch.device_trial import ACCEPTED, DeviceTrials, try_mpi
from hpcps.launch.launchers import Job, Launch
from hpcps.launch.plan import UNTRIED, Plan, Rank
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run

HERE = Path(__file__).parent
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
        pytest.param("NoDevice", "through MPI: this machine has no such device", marks=pytest.mark.soak),
    ],
)
def test_ranks_of_a_trial_find_out_whether_mpi_takes_it(use, device, why):
    use(device)
    found = try_mpi(detect_mpi(MPIRUN))
    assert found.startswith(why) if why else found == ACCEPTED


def test_nothing_is_tried_without_a_device(monkeypatch):
    monkeypatch.delenv("HPCPS_DEVICE", raising=False)
    if not os.path.exists("/dev/nvidiactl"):
        assert try_mpi(detect_mpi(MPIRUN)) == "through MPI: there is no NVIDIA driver"
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
