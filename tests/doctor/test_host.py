"""The limits of control groups, and the hosts of batch jobs."""

import os

import pytest

from hpcps.errors import LaunchError
from hpcps.launch.batch import allocation, with_gpus
from hpcps.launch.hostfile import Host
from hpcps.launch.limits import cgroup_quota, memory_limit


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


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        ("0::/job/step", {"job/step/memory.max": "max", "job/memory.max": "1048576", "memory.max": "2097152"}, 2**20),
        ("7:memory:/job", {"memory/job/memory.limit_in_bytes": "4096", "memory/memory.limit_in_bytes": "8192"}, 4096),
        ("4:cpu:/job", {"cpu/job/memory.max": "5"}, None),
        ("0::/", {"memory.max": "9223372036854771712"}, None),  # no limit, of version 1
        ("nonsense", {"memory.max": "a b"}, None),
    ],
)
def test_the_limit_of_memory(own, files, limit, tmp_path):
    tree(tmp_path, {**files, "self": own})
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit(tmp_path, tmp_path / "self") == (limit or here)


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


QSTAT = """Job Id: 12.pbs
    Job_Name = train
    exec_host = n1/0*8+n2/0*8+n1/1*4
    exec_vnode = (n1[0]:ncpus=4:ngpus=2:mem=8gb+n1[1]:ncpus=4:ngpus=2)+(n2:ncpu
\ts=8:ngpus=2)+(n1:ncpus=4)
    Resource_List.ngpus = 6
"""
SCONTROL = """JobId=7 JobName=train
   NumNodes=3 NumCPUs=6 NumTasks=6 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:7
     Nodes=n[1-2] CPU_IDs=2-3 Mem=1 GRES=gpu:2(IDX:0-1)
     Nodes=n3 CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:0-1),gpu:h100:1(IDX:2)
   TresPerJob=gres:gpu:7
"""
SLURM_NAMES = """case "$*" in
"show hostnames n[1-3]") printf 'n1\\nn2\\nn3\\n' ;;
"show hostnames n[1-2]") printf 'n1\\nn2\\n' ;;
"show hostnames n3") echo n3 ;;
"show job -d 7") cat $here/said ;;
*) exit 1 ;;
esac"""
SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_GPUS_ON_NODE": "2"}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Put a command of a batch system on PATH, which is a line of shell, and the text that it says."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(name, line, said=""):
        (tmp_path / "said").write_text(said)
        (tmp_path / name).write_text(f"#!/bin/sh\nhere={tmp_path}\n{line}\n")
        (tmp_path / name).chmod(0o755)

    return make


@pytest.fixture
def pbs(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("n1.site\nn1.site\nN2.site\n")
    return {"PBS_JOBID": "12.pbs", "PBS_NODEFILE": str(nodes), "PATH": str(tmp_path)}


def facts(environment):
    return [(host.slots, host.gpu_count, host.gpus) for host in allocation(60.0, environment).hosts]


def test_the_gpus_of_a_job_of_pbs_are_those_of_its_chunks(command, pbs):
    command("qstat", '[ "$*" = "-f 12.pbs" ] && cat $here/said', QSTAT)
    assert facts(pbs) == [(2, 4, ()), (1, 2, ())]
    job = allocation(60.0, pbs | {"CUDA_VISIBLE_DEVICES": "0", "HPCPS_GPUS": "7"})
    assert job.text == "PBS job 12.pbs; hosts n1.site:2 (4 GPUs), N2.site:1 (2 GPUs)"
    assert [host["gpus"] for host in job.data()["hosts"]] == [4, 2]


def test_where_pbs_says_nothing_the_variables_count(command, pbs):
    command("qstat", "exit 1")
    assert facts(pbs | {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "HPCPS_GPUS": "7"}) == [(2, 2, ()), (1, 2, ())]
    assert facts(pbs | {"HPCPS_GPUS": "0,1"}) == [(2, 0, ("0", "1")), (1, 0, ("0", "1"))]
    assert facts(pbs | {"CUDA_VISIBLE_DEVICES": ""}) == [(2, 0, ()), (1, 0, ())]
    with pytest.raises(LaunchError, match="HPCPS_GPUS = '0;1': '0;1' is no GPU id"):
        facts(pbs | {"HPCPS_GPUS": "0;1"})


@pytest.mark.parametrize(
    ("variables", "slots"),
    [
        ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x3)"}, [2, 2, 2]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2),1"}, [2, 2, 1]),
        ({"SLURM_TASKS_PER_NODE": "56(x3)"}, [1, 1, 1]),
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "2(x2)"}, [1, 1, 1]),
    ],
)
def test_the_slots_of_a_job_of_slurm_are_its_tasks(command, variables, slots):
    command("scontrol", SLURM_NAMES)
    assert [host.slots for host in allocation(60.0, SLURM | variables).hosts] == slots


def test_the_gpus_of_a_job_of_slurm_may_differ_between_nodes(command):
    command("scontrol", SLURM_NAMES, SCONTROL)
    assert [host.gpu_count for host in allocation(60.0, SLURM).hosts] == [2, 2, 3]
    command("scontrol", SLURM_NAMES)
    assert [host.gpu_count for host in allocation(60.0, SLURM).hosts] == [2, 2, 2]


def test_the_gpus_of_a_host_file_stay(command, pbs):
    command("qstat", "cat $here/said", QSTAT)
    hosts = (Host("n1", 2, ("5",)), Host("n2", 1), Host("elsewhere", 1))
    assert with_gpus(hosts, 60.0, pbs) == (hosts[0], Host("n2", 1, gpu_count=2), hosts[2])


def test_no_job(tmp_path):
    assert allocation(5.0, {"PATH": str(tmp_path)}).text == "none"
    tree(tmp_path, {"qsub": ""})
    (tmp_path / "qsub").chmod(0o755)
    assert allocation(5.0, {"PATH": str(tmp_path)}).text == "no job (qsub is here)"
