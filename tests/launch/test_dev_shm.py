"""Launches where `/dev/shm` is small, as in a container: what says so before, and what says so after a crash."""

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.launch.cause import ProcessDeath, find_cause, read_death
from hpcps.launch.dev_shm import Space, explanation, shortage, space
from hpcps.launch.guard import MARK
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.records.run_directory import RunDirectory

FULL = Space(2**20, 0)
WORLD = tuple(Rank(rank, "worker", rank, f"n{rank // 2}") for rank in range(4))


@pytest.fixture
def small():
    """Run a command with a `/dev/shm` of its own of this size; return its status and what it prints."""

    def run(size, *command):
        mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
        return subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", *command], capture_output=True, text=True)

    if run("1m", "true").returncode:
        pytest.skip("a mount namespace needs root")
    return run


def hpcps(*arguments):
    return sys.executable, "-m", "hpcps", *map(str, arguments)


@pytest.fixture
def tmp_path():
    """A folder outside of /dev/shm, which these tests replace."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="hpcps-") as folder:
        yield Path(folder)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "shm.toml"
    path.write_text(small_experiment("shm", {"transport.kind": "mpi", "topology.validators": 0, "train.epochs": 1}))
    return path


@pytest.mark.thorough
def test_the_report_of_a_run_says_that_dev_shm_is_too_small(small, file, tmp_path):
    ended = small("1m", *hpcps("run", file, "--results", tmp_path))
    assert ended.returncode == 1
    verdict = next(line for line in (ended.stdout + ended.stderr).splitlines() if "failed in" in line)
    assert "phase start: the process was killed by signal" in verdict
    assert "/dev/shm has 1.0 MB, " in verdict
    assert "for each of the 3 processes of the host" in verdict
    assert "--shm-size" in verdict
    assert "UCX_TLS=^posix" in verdict


@pytest.mark.thorough
def test_check_and_doctor_compare_the_needs_with_the_free_space(small, file, tmp_path):
    checked = small("8m", *hpcps("check", file))
    assert checked.returncode == 0
    assert "warning: MPI may need 28.2 MB of /dev/shm for 3 processes on one host" in checked.stderr
    examined = small("8m", *hpcps("doctor", file, "--json", "--results", tmp_path))
    found = json.loads(examined.stdout)
    each = found["mpi"]["shm"]
    assert 0 < each < 8e6
    assert (examined.returncode, any("MPI needs" in need for need in found["needs"]["unmet"])) == (
        (69, True) if shortage(3, Space(**found["shared_memory"]["shm"]), each) else (0, False)
    )


@pytest.mark.thorough
@pytest.mark.sample(1, 2)
@pytest.mark.parametrize("size", ["15m", "16m", "18m"])
def test_doctor_never_leaves_out_that_dev_shm_is_too_small(small, file, tmp_path, size):
    examined = small(size, *hpcps("doctor", file, "--json", "--results", tmp_path))
    found = json.loads(examined.stdout)
    explained = any("/dev/shm has" in need and "--shm-size" in need for need in found["needs"]["unmet"])
    assert (examined.returncode, explained) == ((0, False) if (found["mpi"]["shm"] or 1e9) < 2e6 else (69, True))


def test_the_memory_of_hpcps_is_not_in_dev_shm(small):
    program = (
        "from hpcps.transport.shared_memory import Arena\n"
        "arena = Arena(); arena.allocate(2**22)[:] = 1.0; print(arena.shortage)"
    )
    assert small("64k", sys.executable, "-c", program).stdout == "None\n"


@pytest.mark.parametrize(
    ("processes", "there", "each", "text"),
    [
        (18, Space(64e6, 64e6), None, "MPI may need 109.2 MB of /dev/shm for 18 processes on one host"),
        (18, Space(64e6, 60e6), 5.5e6, "MPI needs 111.0 MB of /dev/shm for 18 processes on one host"),
        (5, Space(37e6, 37e6), 5.4e6, "MPI needs 39.0 MB of /dev/shm for 5 processes on one host"),
        (5, Space(37e6, 37e6), 3.2e6, "MPI needs 39.0 MB of /dev/shm for 5 processes on one host"),
        (5, Space(40e6, 40e6), 5.4e6, ""),
        (18, Space(64e6, 60e6), 1e6, ""),
        (2, Space(64e6, 1e6), 1e6, "/dev/shm has 64.0 MB, 1.0 MB free: "),
        (10**6, None, None, ""),
    ],
)
def test_what_a_launch_needs_is_compared(processes, there, each, text):
    found = shortage(processes, there, each)
    assert text in found
    assert bool(text) == bool(found)


@pytest.mark.parametrize(
    ("there", "explains"),
    [(Space(25e9, 24e9), False), (Space(25e9, 1000), True), (Space(64e6, 60e6), False), (Space(27e6, 27e6), True)],
)
def test_a_large_dev_shm_explains_no_crash(there, explains):
    assert bool(explanation(3, there)) == explains


def test_a_folder_that_is_not_there_has_no_space(tmp_path):
    assert space(tmp_path / "none") is None


@pytest.fixture
def cause_of(tmp_path):
    """Return the error of the process that failed first."""
    directory = RunDirectory(tmp_path / "run")
    directory.create({})
    run = PlannedRun("abc", "one", str(directory.path), {})

    def call(death, plan, record=""):
        (directory.path / "records" / "worker-1.jsonl").write_text(record)
        return find_cause(run, [death], directory.failures, replace(plan, runs=(run,))).error

    return call


def test_only_a_rank_of_mpi_that_has_not_begun_is_told_about_dev_shm(cause_of):
    death = ProcessDeath("worker", 1, 17, "n0", "the process was killed by signal 7 (SIGBUS)", FULL)
    plan = Plan(WORLD, ())
    assert "for each of the 2 processes of the host" in cause_of(death, plan)
    assert cause_of(death, replace(plan, mpi=False)) == death.end
    assert cause_of(replace(death, shm=None), plan) == death.end
    assert cause_of(death, plan, '{"event": "start"}\n') == death.end


@pytest.mark.parametrize(("shm", "read"), [(None, None), ([8, 2], Space(8, 2))])
def test_the_guard_tells_the_space_of_its_host(shm, read):
    line = json.dumps({"name": "worker-1", "pid": 4, "host": "n1", "end": "was killed", "shm": shm})
    death = read_death(MARK + line)
    assert death is not None
    assert death.shm == read
