"""The limits of control groups, and the hosts of batch jobs."""

import pytest

from hpcps.launch.batch import allocation
from hpcps.launch.limits import cgroup_quota


def tree(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/job/step", {"job/step/cpu.max": "max 100000", "job/cpu.max": "350000 100000"}, 3.5),
        ("0::/of/the/host", {"cpu.max": "150000 100000"}, 1.5),  # in a container
        ("0::/job", {"job/cpu.max": "max 100000"}, None),
        (
            "4:cpu,cpuacct:/job\n1:name=systemd:/",
            {"cpu,cpuacct/job/cpu.cfs_quota_us": "200000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
            2.0,
        ),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("nonsense", {"cpu.max": "a b"}, None),
    ],
)
def test_the_limit_of_control_groups(own, files, quota, tmp_path):
    tree(tmp_path, {**files, "self": own})
    assert cgroup_quota(tmp_path, tmp_path / "self") == quota


def test_a_job_of_pbs(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("n1\nn1\nn2\n")
    job = {"PBS_JOBID": "12.pbs", "PBS_NODEFILE": str(nodes), "PATH": str(tmp_path)}
    assert allocation(5.0, job).text == "PBS job 12.pbs; hosts n1:2, n2:1"
    assert "there is no host file" in allocation(5.0, job | {"PBS_NODEFILE": "/nowhere"}).text
    assert "PBS_NODEFILE is not set" in allocation(5.0, {"PBS_JOBID": "12.pbs", "PATH": ""}).text


def test_a_job_of_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tree(tmp_path, {"scontrol": '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"\n'})
    (tmp_path / "scontrol").chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert allocation(5.0, job).text == "Slurm job 7; hosts n1:1, n2:1"
    (tmp_path / "scontrol").write_text("#!/bin/sh\nsleep 600\n")
    assert "`scontrol show hostnames n[1-2]` does not answer within 0.5 s" in allocation(0.5, job).text


def test_no_job(tmp_path):
    assert allocation(5.0, {"PATH": str(tmp_path)}).text == "none"
    tree(tmp_path, {"qsub": ""})
    (tmp_path / "qsub").chmod(0o755)
    assert allocation(5.0, {"PATH": str(tmp_path)}).text == "no job (qsub is here)"
