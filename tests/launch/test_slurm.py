"""The Slurm scripts and dialect, on a real Slurm with several nodes."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest
from environments import ROOT, documented_job, interpreter
from slurm_cluster import make_slurm
from small_experiment import small_experiment
from test_script_on_hosts import SCRIPT

from hpcps.launch.detect import find_launcher
from hpcps.launch.hostfile import Host
from hpcps.launch.launchers import Job
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan
from hpcps.spec.schema import Topology

pytestmark = pytest.mark.usefixtures("starts_processes")

SMALL = (
    "--set data.name=digits --set data.augment=false --set data.limit=200 --set model.name=mlp "
    "--set topology.workers=2 --set train.batch_size=8"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    cluster = make_slurm(tmp_path_factory.mktemp("slurm"), nodes=4)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def submit(slurm, tmp_path):
    """Submit a script of ours; return the job's number."""

    def submit(script, *options, arguments=f"{SMALL} --set train.epochs=1", **variables):
        variables = {
            "HPCPS_PYTHON": str(interpreter("mpich")),
            "HPCPS_HOME": str(ROOT),
            "HPCPS_RESULTS": f"{tmp_path}/results",
            "ARGS": arguments,
            # As --output; a successor takes it over.
            "SBATCH_OUTPUT": f"{tmp_path}/%A-%a.out",
            **variables,
        }
        wanted = ["--parsable", "--cpus-per-task=2", *options]
        return slurm.say("sbatch", *wanted, ROOT / "launcher" / "slurm" / script, **variables)

    return submit


def said(tmp_path):
    return "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.out")))


def placed(slurm, tmp_path, dialect, launcher, hosts, more=()):
    """Start `placed.py` in place of the runtime within a job; return what rank 0 gathered."""
    topology = Topology(servers=2, validators=2, workers=2, colocate_validators=True)
    python = interpreter("mpich")
    job = Job(
        plan=Plan(place(topology, hosts), ()),
        plan_file=tmp_path / "conf.plan.json",
        configfile=tmp_path / "conf",
        mpirun=launcher,
        python=python,
        variables={"OMP_NUM_THREADS": "2", "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
    )
    launch = find_launcher(dialect).launch_of(job)
    launch.write()
    job.configfile.write_text(job.configfile.read_text().replace("-m hpcps.execution", "-m placed"))
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{launch.line}\n")
    number = slurm.say("sbatch", "--parsable", f"--output={tmp_path}/job.out", *more, script)
    ended = slurm.finish(number)
    text = (tmp_path / "job.out").read_text()
    assert ended["ExitCode"] == "0:0", text
    (line,) = [line for line in text.splitlines() if line.startswith("PLACED")]
    return job.plan, json.loads(line.removeprefix("PLACED"))


@pytest.mark.parametrize("dialect", ["slurm", "hydra"])
def test_every_rank_is_where_the_plan_has_it(slurm, tmp_path, dialect):
    """Hosts in another order than Slurm's, pairs on a node, GPUs. MPICH's own mpirun works within a job as well."""
    launcher = Path("/usr/bin/srun") if dialect == "slurm" else interpreter("mpich").parent / "mpirun"
    hosts = [Host("node3", 1, ("0",)), Host("node1", 1), Host("node4", 1, ("1", "2")), Host("node2", 1)]
    # What the scripts ask for, and an environment that sbatch does not hand on.
    more = ["--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=2", "--export=NONE"]
    plan, everyone = placed(slurm, tmp_path, dialect, launcher, hosts, more)
    assert [each["me"] for each in everyone] == [str(rank) for rank in plan.world]
    assert [each["role"] for each in everyone] == [rank.role for rank in plan.world]
    assert [each["problems"] for each in everyone] == [[]] * 6
    assert [each["gpu"] for each in everyone] == [rank.gpu for rank in plan.world] == ["0", None, "1", "2", None, None]
    assert {each["threads"] for each in everyone} == {"2"}


def test_a_node_has_a_slot_for_each_of_its_tasks_and_the_gpus_of_the_job(slurm, submit, tmp_path):
    options = "--nodes=2", "--ntasks-per-node=2", "--gpus=3"
    number = submit("sync_single_validator.sh", *options, arguments=f"{SMALL} --only 0 --dry-run")
    assert slurm.finish(number)["ExitCode"] == "0:0", said(tmp_path)
    (path,) = tmp_path.glob("results/*/launch/*/conf.plan.json")
    world = [(each["host"], each["role"], each["gpu_index"]) for each in json.loads(path.read_text())["world"]]
    assert world == [
        ("node1", "worker", 0),
        ("node1", "validator", 1),
        ("node2", "worker", 0),
        ("node2", "server", 0),
    ]


def test_an_array_takes_a_point_each(slurm, submit, tmp_path):
    options = "--array=3-4%1", "--nodes=4"
    number = submit("sync_single_validator.sh", *options, arguments=f"{SMALL} --dry-run")
    for index in (3, 4):
        assert slurm.finish(f"{number}_{index}")["ExitCode"] == "0:0", said(tmp_path)
    plans = [json.loads(path.read_text()) for path in tmp_path.glob("results/*/launch/*/conf.plan.json")]
    assert sorted(run["spec"]["index"] for plan in plans for run in plan["runs"]) == [3, 4]


def test_a_job_at_its_walltime_submits_its_successor(slurm, submit, tmp_path):
    """The shell's side: an interpreter that only notes what it is called with, and once ends with 75."""
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\n[ "$*" != "-m hpcps --version" ] || exit 0\n'
        f'echo "$HPCPS_SUCCESSOR|$ONLY|$*" >>{shlex.quote(str(tmp_path))}/calls\n'
        '[ -n "$HPCPS_SUCCESSOR" ] || exit 75\n'
    )
    python.chmod(0o755)
    number = submit(
        "async_single_validator.sh",
        *("--array=5", "--nodes=3", "--time=00:07:00", "--ntasks-per-node=2", "--gpus-per-node=1"),
        arguments="--set x=[1,2]",
        HPCPS_PYTHON=str(python),
    )
    assert slurm.finish(f"{number}_5")["ExitCode"] == "0:0", said(tmp_path)
    (line,) = [line for line in said(tmp_path).splitlines() if "continues as" in line]
    successor = line.split("continues as ")[1].split()[0]
    ended = slurm.finish(successor)
    assert ended["ExitCode"] == "0:0"
    assert (ended["NumNodes"], ended["TimeLimit"]) == ("3", "00:07:00")
    assert (ended["NumTasks"], ended["TresPerNode"]) == ("6", "gres:gpu:1")
    assert "ArrayTaskId" not in ended
    first, second = [call.split("|") for call in (tmp_path / "calls").read_text().splitlines()]
    assert (first[0], second[0], second[1]) == ("", "1", "5")
    for call in (first[2], second[2]):
        words = call.split()
        assert words[:4] == ["-m", "hpcps", "run", "experiments/fig5_async_single_validator.toml"]
        assert words[words.index("--only") + 1] == "5"
        minutes, _, rest = words[words.index("--walltime") + 1].partition(":")
        assert 6 <= int(minutes) <= 7
        assert rest.isdigit()
        assert call.endswith("--set x=[1,2]")


def test_jobs_that_wait_for_a_job_wait_for_its_successor(slurm, submit, tmp_path):
    """The successor waits for a file, so that the test sees what waits for it."""
    go = shlex.quote(f"{tmp_path}/go")
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/bash\n[ "$*" != "-m hpcps --version" ] || exit 0\n[ -n "$HPCPS_SUCCESSOR" ] || exit 75\n'
        f"until [ -e {go} ]; do sleep 0.1; done\n"
    )
    python.chmod(0o755)
    job = tmp_path / "after.sh"
    job.write_text("#!/bin/bash\n")

    def after(dependency):
        return slurm.say("sbatch", "--parsable", "--output=/dev/null", f"--dependency={dependency}", job)

    single = submit("sync_tune_rho.sh", "--nodes=1", "--hold", HPCPS_PYTHON=str(python))
    array = submit("sync_tune_rho.sh", "--nodes=1", "--array=5", "--hold", HPCPS_PYTHON=str(python))
    both, any_of = after(f"afterok:{single}:{array}"), after(f"afterok:{single}?afterany:{array}_5")
    slurm.say("scontrol", "release", f"{single},{array}")
    for number in (single, f"{array}_5"):
        assert slurm.finish(number)["ExitCode"] == "0:0", said(tmp_path)
    lines = [line for line in said(tmp_path).splitlines() if "continues as" in line]
    successors = {line.split("continues as ")[1].split()[0] for line in lines}
    assert len(successors) == 2
    assert {slurm.job(number)["JobState"] for number in (both, any_of)} == {"PENDING"}
    waits = slurm.job(both)["Dependency"]
    assert all(f"afterok:{number}(" in waits for number in successors)
    (tmp_path / "go").touch()
    assert {slurm.finish(number)["JobState"] for number in (*successors, both, any_of)} == {"COMPLETED"}


def test_a_run_that_is_out_of_time_goes_on_in_the_next_job(slurm, submit, tmp_path):
    """For real, with a minute of walltime, of which more than half is kept in reserve."""
    arguments = f"{SMALL} --set train.epochs=5000 --set checkpoint.margin=36 --set checkpoint.successors=1"
    number = submit("sync_single_validator.sh", "--nodes=4", "--time=1", ONLY="0", arguments=arguments)
    first = slurm.finish(number)
    assert (first["JobState"], first["ExitCode"]) == ("COMPLETED", "0:0"), said(tmp_path)
    (line,) = [line for line in said(tmp_path).splitlines() if "continues as" in line]
    second = slurm.finish(line.split("continues as ")[1].split()[0])
    assert second["ExitCode"] != "0:0"
    text = said(tmp_path)
    # pytest shortens a long text in an assertion, but not what a test has printed.
    print(text)
    assert "checkpoint.successors = 1 allows no job after this one" in text
    (record,) = tmp_path.glob("results/*/runs/*/records/validator-0.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["attempt"] for line in lines if line["event"] == "start"] == [1, 2]
    rounds = [line["round"] for line in lines if line["event"] == "round"]
    # Few on a busy machine, but each job makes one at least.
    assert len(rounds) >= 2
    assert rounds == list(range(len(rounds)))


# A script that has used and freed much memory before it starts MPI. MPICH publishes the padding of its addresses too;
# with what the memory contained before, they are longer than srun can read.
USED = """
import random
used = [random.randbytes(size) for size in range(600, 8_000, 16) for _ in range(4)]
del used[::2]
"""
DIES = """
import os
from pathlib import Path
from hpcps.launch.guard import LostGuards, mpi_start
with mpi_start(LostGuards(Path(os.environ["HPCPS_PLAN"])).file(f"worker-{os.environ['RANK']}"), 100):
    os._exit(15)
"""


@pytest.fixture
def documented(slurm, tmp_path):
    """Execute the job of the manual with a script; return what it prints."""

    def execute(script, replaced, by):
        (tmp_path / "train.py").write_text(script)
        environment = interpreter("mpich").parents[1]
        job = documented_job("#SBATCH").replace("/path/to/.venv", str(environment)).replace("-task=8", "-task=2")
        (tmp_path / "job.sh").write_text(job.replace(replaced, by))
        number = slurm.say(
            "sbatch", "--parsable", f"--chdir={tmp_path}", f"--output={tmp_path}/out", tmp_path / "job.sh"
        )
        slurm.finish(number)
        return (tmp_path / "out").read_text()

    return execute


def test_the_job_of_the_manual_runs_a_script(slurm, documented):
    text = documented(USED + SCRIPT.replace("== 6", "== 10"), "train.py", "train.py none")
    said = sorted(line.split() for line in text.splitlines() if line.startswith("at "))
    assert [words[1] for words in said] == slurm.names, text
    assert sorted(words[2] for words in said) == ["0", "1", "2", "3"]
    assert {(words[3], words[4]) for words in said} == {("0", "1")}


@pytest.mark.parametrize("mpi", ["pmi2", "none"])
def test_the_tasks_of_srun_exchange_or_are_refused(slurm, tmp_path, mpi):
    """Without `hpcps launch`; srun without the PMI of MPICH starts tasks that do not know of each other."""
    script = tmp_path / "step.py"
    script.write_text(
        "import torch, hpcps.torch as bps\nbps.init(timeout=60)\n"
        "print(bps.rank(), bps.size(), bps.push_pull(torch.ones(2), average=False).tolist(), flush=True)\n"
    )
    command = ["srun", "--nodes=2", "--ntasks=2", f"--mpi={mpi}", interpreter("mpich"), script]
    done = slurm.try_to_say(*command, PYTHONPATH=str(ROOT))
    if mpi == "pmi2":
        assert (done.returncode, sorted(done.stdout.splitlines())) == (
            0,
            ["0 2 [2.0, 2.0]", "1 2 [2.0, 2.0]"],
        ), done.stderr
    else:
        assert done.returncode
        assert done.stdout == ""
        assert "of 2 (SLURM_STEP_NUM_TASKS), and MPI (MPICH" in done.stderr
        assert "under Slurm with another srun --mpi" in done.stderr


def test_a_rank_that_dies_in_the_start_of_mpi_under_srun_is_told_of_mpirun(documented):
    text = documented(DIES, "--hostfile", "--mpirun srun --hostfile")
    assert "failed in phase start: the process exited with status 15 in MPI's start: srun loses" in text
    assert "(--mpirun mpirun, HPCPS_MPIRUN=mpirun)" in text


SUBMITTED = """
import sys, hpcps
options = ["--nodes=1", "--cpus-per-task=1", "--no-requeue", "--time=10"]
first, second = hpcps.submit("small.toml", executor="slurm", results="results", options=options)
second.cancel()
print(first.job, first.state, flush=True)
sys.stdin.readline()
print(first.result(timeout=200).ids == (first.run_id,), first.job, "1 run" in first.logs(), second.state)
"""


def test_a_run_that_loses_its_node_is_submitted_again(slurm, tmp_path):
    """`hpcps.submit`, from the login host."""
    sweep = "[[sweep]]\nseed = [1, 2]\n"
    (tmp_path / "small.toml").write_text(small_experiment("small", {"train.epochs": 5}, sweep))
    command = [*slurm.on("login"), str(interpreter("mpich")), "-c", SUBMITTED]
    environment = {**slurm.environment, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        job, state = process.stdout.readline().split()
        assert state in ("pending", "running")
        node = slurm.wait_for_node(job)
        slurm.say("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        try:
            assert slurm.finish(job)["JobState"] == "NODE_FAIL"
            done, last, logged, other = process.communicate("\n", timeout=300)[0].split()
        finally:
            slurm.try_to_say("scontrol", "update", f"NodeName={node}", "State=RESUME")  # it may have returned by itself
    assert (done, logged, other) == ("True", "True", "cancelled")
    assert last != job


def test_doctor_compares_the_nodes_of_a_job(slurm, submit, tmp_path):
    """Through `srun`: nodes may refuse ssh."""
    number = submit("command.sh", "--nodes=3", arguments="--json", HPCPS_COMMAND="doctor --hostfile")
    job = slurm.finish(number)
    assert job["ExitCode"] == "0:0", said(tmp_path)
    text = said(tmp_path)
    found = json.JSONDecoder().raw_decode(text[text.index("\n{") + 1 :])[0]
    assert [each["facts"]["name"] for each in found["hosts"]] == slurm.names[:3]
    assert (len(found["links"]), found["problems"]) == (6, [])
