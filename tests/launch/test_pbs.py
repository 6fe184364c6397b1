"""The PBS scripts, run as PBS runs them: a copy, in another folder, with PBS's variables and little else."""

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from contextlib import suppress

import pytest
from cluster import make_cluster
from environments import ROOT, interpreter
from running_processes import processes, within

pytestmark = pytest.mark.usefixtures("starts_processes")

PBS = ROOT / "launcher" / "pbs"
SMALL = (
    "--set data.name=digits --set data.augment=false --set data.limit=200 --set model.name=mlp "
    "--set topology.workers=1 --set train.batch_size=8"
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


def test_on_several_hosts_without_ssh(job, tmp_path):
    """Everybody can read the results if the profile says so, whatever umask PBS starts a process with."""
    cluster = make_cluster(tmp_path, hosts=3)
    profile = tmp_path / "site.sh"
    profile.write_text("site_setup() {\n  umask 022\n}\n")
    status, output = finish(job(within=cluster.enter, ONLY="0", HPCPS_SITE=str(profile), **cluster.environment))
    assert status == 0, output
    written = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("results/**/*")}
    assert {path: oct(mode) for path, mode in written.items() if mode & 0o044 != 0o044} == {}
    (run,) = runs(tmp_path)
    hosts = {}
    for record in (run / "records").iterdir():
        first = json.loads(record.read_text().splitlines()[0])
        hosts[record.stem] = first["host"]
    assert hosts == {"worker-0": "node1", "validator-0": "node2", "server-0": "node3"}


def test_a_deleted_job_ends_with_its_processes(job, tmp_path):
    process = job(ONLY="0", ARGS=f"{SMALL} --set train.epochs=5000")

    def begun():
        assert process.poll() is None, process.communicate()
        return list(tmp_path.glob("results/*/runs/*/records/validator-0.jsonl"))

    within(60, begun, "the first record")
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status, output = finish(process)
    assert status == 143, output
    # PBS gives a job ten seconds between TERM and KILL.
    assert time.monotonic() - told < 9
    assert processes(str(tmp_path)) == {}
    assert not list(tmp_path.glob("results/*/runs/*/DONE"))


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
