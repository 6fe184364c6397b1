import os
from pathlib import Path

import pytest

from hpcps.errors import LaunchError
from hpcps.launch import batch, detect
from hpcps.launch.detect import find_launcher

pytestmark = pytest.mark.usefixtures("starts_processes")


@pytest.fixture
def launcher(tmp_path):
    """Make a launcher that answers `--version` with a text."""

    def launcher(text, status=0):
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}\nEOF\nexit {status}\n")
        path.chmod(0o755)
        return path

    return launcher


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("mpirun (Open MPI) 4.1.6\n\nReport bugs to …", "openmpi"),
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("HYDRA build details:\n    Version:                                 4.2.3", "hydra"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515", "intel"),
        ("slurm-wlm 22.05.8", "slurm"),
        ("slurm 24.11.1", "slurm"),
        ("PALS mpiexec version 1.4.0", "pals"),
    ],
)
def test_each_launcher(launcher, text, dialect):
    path = launcher(text)
    assert detect.detect_mpi(path) == detect.Mpi(find_launcher(dialect), path)


def test_a_launcher_of_another_kind(launcher):
    with pytest.raises(LaunchError, match=r"says 'jsrun 10\.3'"):
        detect.detect_mpi(launcher("jsrun 10.3", status=1))


def test_pals_is_known_by_its_place(launcher, tmp_path):
    """What it says of itself differs; Cray's `mpirun` is a link into its folder."""
    place = tmp_path / "opt" / "cray" / "pals" / "1.4" / "bin"
    place.mkdir(parents=True)
    (place / "mpiexec").write_bytes(launcher("mpiexec 1.4.0").read_bytes())
    (place / "mpiexec").chmod(0o755)
    (tmp_path / "mpirun").unlink()
    (tmp_path / "mpirun").symlink_to(place / "mpiexec")
    assert detect.detect_mpi(tmp_path / "mpirun").launcher.name == "pals"


def test_a_user_called_pals_has_mpich(launcher, tmp_path):
    (tmp_path / "pals").mkdir()
    path = launcher("HYDRA build details:\n    Version: 4.2.3").rename(tmp_path / "pals" / "mpirun")
    assert detect.detect_mpi(path).launcher.name == "hydra"


def test_a_launcher_may_be_given_by_its_name(launcher, monkeypatch, tmp_path):
    path = launcher("slurm-wlm 22.05.8").rename(tmp_path / "srun")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert detect.detect_mpi(Path("srun")) == detect.Mpi(find_launcher("slurm"), path)


@pytest.mark.parametrize("there", [["srun"], ["mpiexec", "srun"], ["mpirun", "mpiexec", "srun"]])
def test_the_first_name_on_the_path(there, monkeypatch, tmp_path):
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "bin" / "python"))
    assert detect.find_mpirun() == tmp_path / there[0]


def test_a_launcher_that_does_not_start(tmp_path):
    with pytest.raises(LaunchError, match="does not answer"):
        detect.detect_mpi(tmp_path / "mpirun")


def test_no_launcher_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match=r"no mpirun.* -m pip install mpich"):
        detect.detect_mpi()


def test_the_launcher_beside_this_python_comes_first(launcher, monkeypatch, tmp_path):
    path = launcher("mpirun (Open MPI) 5.0.11")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"/nowhere:{os.environ['PATH']}")
    assert detect.find_mpirun() == path


def test_the_agent_is_there_only_in_a_pbs_job_with_its_tools(tmp_path):
    tool = tmp_path / "bin" / "pbs_tmrsh"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    job = {"PBS_NODEFILE": "/var/spool/pbs/aux/1", "PBS_EXEC": str(tmp_path)}
    agent = batch.remote_agent(job)
    assert agent is not None
    assert os.access(agent, os.X_OK)
    assert batch.remote_agent({"PBS_EXEC": str(tmp_path)}) is None
    assert batch.remote_agent(job | {"PBS_EXEC": str(tmp_path / "elsewhere")}) is None
