import os

import pytest

from hpcps.errors import LaunchError
from hpcps.launch import detect


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
    ("text", "dialect", "version"),
    [
        ("mpirun (Open MPI) 4.1.6\n\nReport bugs to …", "openmpi", "4.1.6"),
        ("mpirun (Open MPI) 5.0.11", "openmpi", "5.0.11"),
        ("HYDRA build details:\n    Version:                                 4.2.3", "hydra", "4.2.3"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.13 Build 20240515", "intel", "2021.13 Build 20240515"),
    ],
)
def test_each_launcher(launcher, text, dialect, version):
    path = launcher(text)
    assert detect.detect_mpi(path) == detect.Mpi(dialect, version, path)


def test_a_launcher_of_another_kind(launcher):
    with pytest.raises(LaunchError, match=r"says 'slurm-wlm 23\.11'"):
        detect.detect_mpi(launcher("slurm-wlm 23.11", status=1))


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
    agent = detect.remote_agent(job)
    assert agent is not None
    assert os.access(agent, os.X_OK)
    assert detect.remote_agent({"PBS_EXEC": str(tmp_path)}) is None
    assert detect.remote_agent(job | {"PBS_EXEC": str(tmp_path / "elsewhere")}) is None
