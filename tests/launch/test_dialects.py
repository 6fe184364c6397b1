"""What is generated, to the letter: golden/<placement>.<dialect>.txt. UPDATE_GOLDEN=1 writes them anew."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpcps import registry
from hpcps.errors import LaunchError
from hpcps.launch import gpu_mpi
from hpcps.launch.batch import helper_variables
from hpcps.launch.detect import find_launcher
from hpcps.launch.hostfile import Host
from hpcps.launch.launchers import Job, OpenMpi, Slurm
from hpcps.launch.placement import place, with_further
from hpcps.launch.plan import Plan
from hpcps.spec.schema import Topology

GOLDEN = Path(__file__).parent / "golden"
DIALECTS = list(registry.launchers)
CONF = Path("/shared/results/fig3/launch/7/conf")
PLACEMENTS = {
    "here": place(Topology(servers=1, validators=1, workers=8)),
    "figure3": place(Topology(servers=1, validators=1, workers=16), [Host(f"n{i:02d}", 1) for i in range(1, 19)]),
    "colocated": place(
        Topology(servers=2, validators=2, workers=5, colocate_validators=True),
        [Host("a", 3, ("0", "1")), Host("b", 2), Host("10.0.0.3", 2)],
    ),
}


def job(world, **changes):
    return replace(
        Job(
            plan=Plan(world, ()),
            plan_file=CONF.with_name("conf.plan.json"),
            configfile=CONF,
            mpirun=Path("/opt/mpi/bin/mpirun"),
            python=Path("/shared/hpcps/.venv/bin/python"),
            variables={"OMP_NUM_THREADS": "1", "PYTHONPATH": "/shared/hpcps"},
        ),
        **changes,
    )


def render(dialect, job):
    return find_launcher(dialect).launch_of(job)


def over_pslite(job):
    return replace(job, plan=Plan(with_further("scheduler", job.plan.world), (), mpi=False))


def speaking(dialect, job):
    """Render a job as the dialect can: `plain` is for processes that need no MPI."""
    return render(dialect, over_pslite(job) if dialect == "plain" else job)


@pytest.fixture(autouse=True)
def ordinary_user(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/somebody")


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_golden(placement, dialect):
    assert_golden(speaking(dialect, job(PLACEMENTS[placement])), f"{placement}.{dialect}")


@pytest.mark.parametrize("dialect", ["hydra", "slurm"])
def test_without_mpi_between_them_processes_are_started_the_same_way(dialect):
    """With a scheduler on the first host, and without mpi4py."""
    launch = render(dialect, over_pslite(job(PLACEMENTS["colocated"])))
    assert "mpi4py" not in launch.files[CONF]
    assert_golden(launch, f"pslite.{dialect}")


@pytest.mark.parametrize("dialect", ["hydra", "openmpi", "slurm"])
@pytest.mark.parametrize("placement", ["here", "figure3"])
def test_the_ucx_of_the_environment_is_used(monkeypatch, placement, dialect):
    """Between hosts, UCX chooses among all its transports."""
    monkeypatch.setattr(gpu_mpi, "find_ucx", lambda: Path("/shared/hpcps/.venv/lib/libucx/lib"))
    plain = job(PLACEMENTS[placement], options=["-verbose"])
    with_ucx = gpu_mpi.with_gpu_mpi(plain, find_launcher(dialect), {"LD_LIBRARY_PATH": "/opt/site/lib"})
    assert_golden(render(dialect, with_ucx), f"ucx.{placement}.{dialect}")


@pytest.mark.parametrize("dialect", ["intel", "pals", "plain"])
def test_an_mpi_without_ucx_is_started_as_ever(monkeypatch, dialect):
    monkeypatch.setattr(gpu_mpi, "find_ucx", lambda: Path("/shared/hpcps/.venv/lib/libucx/lib"))
    plain = job(PLACEMENTS["here"])
    assert gpu_mpi.with_gpu_mpi(plain, find_launcher(dialect), {}) == plain


def assert_golden(launch, name):
    text = f"$ {launch.line}\n" + "".join(f"\n== {path} ==\n{content}" for path, content in launch.files.items())
    golden = GOLDEN / f"{name}.txt"
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text(text)
    assert text == golden.read_text()


def test_plain_has_no_mpi_and_no_options():
    with pytest.raises(LaunchError, match=r'transport.kind = "pslite"'):
        render("plain", job(PLACEMENTS["here"]))
    with pytest.raises(LaunchError, match="give --mpirun as well"):
        render("plain", over_pslite(job(PLACEMENTS["here"], options=["-verbose"])))


def test_an_option_for_srun_comes_after_ours_so_that_it_counts():
    command = render("slurm", job(PLACEMENTS["figure3"], options=["--mpi=pmix"])).command
    assert command.index("--mpi=pmi2") < command.index("--mpi=pmix") < command.index("--multi-prog")


def test_a_line_longer_than_srun_may_read_is_an_error():
    long = Path("/shared", *["a-rather-long-folder-name"] * 20, "python")
    with pytest.raises(LaunchError, match=f"srun reads {Slurm.longest_line}"):
        render("slurm", job(PLACEMENTS["here"], python=long))


@pytest.mark.parametrize("dialect", ["hydra", "intel"])
def test_a_long_file_becomes_one_segment(dialect):
    """Hundreds of hosts with several roles each would pass 16 KiB; then each rank takes its role from the plan."""
    world = place(Topology(servers=100, validators=1, workers=100), [Host(f"node{i:03d}", 3) for i in range(100)])
    launch = render(dialect, job(world))
    assert launch.files[CONF].startswith("-n 201 env ")
    assert launch.files[CONF].endswith("conf.plan.json\n")
    hosts = launch.files[CONF.with_name("conf.hosts")].splitlines()
    assert hosts[:2] == ["node000:3", "node001:2"]
    assert len(hosts) == 100
    assert str(CONF.with_name("conf.hosts")) in launch.command


def test_a_line_longer_than_open_mpi_reads_is_an_error():
    long = Path("/shared", *["a-rather-long-folder-name"] * 20, "python")
    assert len(str(long)) < OpenMpi.longest_line
    with pytest.raises(LaunchError, match="use shorter paths"):
        render("openmpi", job(PLACEMENTS["here"], python=long, variables={"PYTHONPATH": str(long)}))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"python": Path("/my files/python")}, "interpreter /my files/python"),
        ({"plan_file": Path("/it's/conf.plan.json")}, "plan /it's/conf"),
        ({"variables": {"PYTHONPATH": '/a"b'}}, "variable PYTHONPATH"),
    ],
)
def test_a_blank_or_a_quote_is_named(dialect, changes, named):
    with pytest.raises(LaunchError, match=named):
        speaking(dialect, job(PLACEMENTS["here"], **changes))


def test_root_and_a_missing_home_under_open_mpi(monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.delenv("HOME")
    variables = render("openmpi", job(PLACEMENTS["here"])).variables
    assert variables["OMPI_ALLOW_RUN_AS_ROOT"] == variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert variables["HOME"].startswith("/")


def test_the_agent_of_a_batch_job(monkeypatch):
    agent = Path("/shared/agent.sh")
    hydra = render("hydra", job(PLACEMENTS["figure3"], agent=agent)).command
    assert hydra[1:5] == ("-launcher", "rsh", "-launcher-exec", str(agent))
    variables = render("openmpi", job(PLACEMENTS["figure3"], agent=agent)).variables
    assert variables["PRTE_MCA_plm_ssh_agent"] == variables["OMPI_MCA_plm_rsh_agent"] == str(agent)


@pytest.mark.parametrize("dialect", ["hydra", "intel"])
def test_slurm_does_not_bind_the_helpers_of_a_launcher_to_a_core(dialect):
    variables = helper_variables({"SLURM_JOB_ID": "12"})
    assert variables == {"SLURM_CPU_BIND": "none"}
    assert render(dialect, job(PLACEMENTS["figure3"], helper_variables=variables)).variables == variables
    assert helper_variables({"PBS_JOBID": "12.server"}) == {}


@pytest.mark.parametrize("dialect", [dialect for dialect in DIALECTS if dialect != "plain"])
def test_options_of_the_site_come_in(dialect):
    launch = render(dialect, job(PLACEMENTS["here"], options=["-verbose"]))
    # Within a pod of Kubernetes, the launcher is a part of the file.
    assert "-verbose" in launch.command or " -verbose " in "".join(launch.files.values())


def test_an_unknown_dialect_lists_those_there_are():
    with pytest.raises(LaunchError, match="hydra, intel, kubernetes, openmpi, pals, plain, slurm"):
        render("lam", job(PLACEMENTS["here"]))
