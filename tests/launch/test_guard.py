"""What a guard says of its process, and what the process leaves behind without its guard."""

import os
import re
import signal
import subprocess
import sys

import pytest
from running_processes import alive, within

from hpcps.launch.cause import ProcessDeath, lost_guards, read_death
from hpcps.launch.guard import ENDED, LostGuards
from hpcps.launch.plan import Plan, Rank

GUARDED = """
import os, signal, sys, time
from pathlib import Path
from hpcps.launch.guard import stand_guard
joining = Path(sys.argv[4]) if sys.argv[4:] else None
replaced = sys.argv[5:] == ["replaced"]
linger = 100.0 if replaced else 0.0
started = stand_guard(
    sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), joining=joining, linger=linger, replaced=replaced
)
print(os.getpid(), os.uname().nodename, flush=True)
"""


@pytest.fixture
def guarded(tmp_path):
    """Start a program under a guard."""
    started = []

    def begin(name, program, timeout=600.0, *joining):
        command = [
            sys.executable,
            "-c",
            GUARDED + program,
            name,
            str(tmp_path / "lost" / "file"),
            str(timeout),
            *joining,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("program", "end", "status"),
    [("sys.exit(7)", "exited with status 7", 7), ("os.kill(os.getpid(), 9)", "was killed by signal 9 (SIGKILL)", -9)],
)
def test_a_death_is_told_to_people_and_to_programs(guarded, tmp_path, program, end, status):
    process = guarded("worker-3", program)
    pid, host = process.stdout.readline().split()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == status
    assert f"hpcps: worker-3 (pid {pid}) on {host} {end}\n" in output
    deaths = [death for line in output.splitlines() if (death := read_death(f"[3] {line}"))]
    assert deaths == [ProcessDeath("worker", 3, int(pid), host, f"the process {end}")]
    assert not (tmp_path / "lost").exists()


@pytest.mark.usefixtures("starts_processes")
def test_the_guard_of_a_process_that_is_replaced_ends_at_once_and_tells_nobody_that_it_has_not_joined(
    guarded, tmp_path
):
    joining = tmp_path / "joining" / "worker-3"
    process = guarded("worker-3", "os.kill(os.getpid(), 9)", 600.0, str(joining), "replaced")
    output, _ = process.communicate(timeout=60)  # it would linger for longer
    assert process.returncode == -9
    assert "was killed by signal 9 (SIGKILL)" in output
    assert not joining.with_name(joining.name + ENDED).exists()


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("program", "end"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSTOP)",
            r"was stopped, such as by SIGSTOP, for \S+ s, and its guard has killed it",
        ),
        ("started(); time.sleep(1000)", r"did nothing for \S+ s, and its guard has killed it"),
    ],
)
def test_a_process_that_gives_no_sign_of_life_is_ended(guarded, program, end):
    process = guarded("worker-3", program, 0.5)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == -9
    (death,) = filter(None, map(read_death, output.splitlines()))
    assert (death.role, death.index) == ("worker", 3)
    assert re.fullmatch(f"the process {end}", death.end), death.end


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("program", "joining"),
    [
        ("started(); os.system('for i in $(seq 60); do sleep 0.05; done')", False),  # it waits for another process
        ("started(); [time.sleep(0.05) for _ in range(60)]", False),  # it waits, and polls
        ("time.sleep(3)", False),  # MPI starts, and waits for another rank
        ("started(); time.sleep(3)", True),  # a script may sleep
    ],
)
def test_a_process_that_waits_is_not_ended(guarded, tmp_path, program, joining):
    process = guarded("worker-3", program, 1.0, *([str(tmp_path / "joining" / "worker-3")] if joining else []))
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output


@pytest.mark.usefixtures("starts_processes")
def test_the_file_of_a_process_that_the_launcher_ends_stays(tmp_path):
    program = "os.kill(os.getpid(), 15)"
    command = [sys.executable, "-c", GUARDED + program, "worker-3", str(tmp_path / "lost" / "worker-3"), "600"]
    subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (tmp_path / "lost" / "worker-3").read_bytes() == b""


@pytest.mark.usefixtures("starts_processes")
def test_one_whom_nobody_knows_is_told_to_people_alone(guarded):
    output, _ = guarded("", "sys.exit(7)").communicate(timeout=90)
    assert "hpcps: a process of unknown rank (pid " in output
    assert not any(map(read_death, output.splitlines()))


@pytest.mark.parametrize("line", ["", "hpcps-death: ", 'hpcps-death: {"name": "worker-1", "pi', "hpcps-death: 5"])
def test_half_a_line_is_no_death(line):
    assert read_death(line) is None


IN_MPI_START = """
from hpcps.launch.guard import mpi_start
def start(seconds, last):
    with mpi_start(Path(sys.argv[2]), seconds):
        last()
"""
HELD = "import ctypes; hold = ctypes.PyDLL(None).pause\n"


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("others", "end"),
    [
        (["worker-0", "worker-0.starting", "worker-1"], "waited 0.1 s in MPI's start for worker-1"),
        (
            ["worker-0", "worker-0.starting"],
            "waited 0.1 s in MPI's start although all others had begun it: check that the hosts reach each other over "
            "the network that MPI uses (--mpirun-options)",
        ),
    ],
)
def test_a_process_that_mpi_does_not_connect_ends_and_says_for_whom_it_waited(guarded, tmp_path, others, end):
    """Though it is in a call of C that holds all threads of Python."""
    (tmp_path / "lost").mkdir()
    for name in others:
        (tmp_path / "lost" / name).touch()
    process = guarded("worker-3", HELD + IN_MPI_START + "start(0.1, hold)")
    pid, host = process.stdout.readline().split()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGALRM
    assert f"hpcps: worker-3 (pid {pid}) on {host} {end}\n" in output


@pytest.mark.usefixtures("starts_processes")
def test_a_death_in_the_start_of_mpi_is_named_as_one(guarded):
    output, _ = guarded("worker-3", IN_MPI_START + "start(100, lambda: os._exit(15))").communicate(timeout=90)
    assert "exited with status 15 in MPI's start\n" in output


@pytest.mark.usefixtures("starts_processes")
def test_after_the_start_of_mpi_there_is_no_limit_and_no_word_about_it(guarded):
    program = IN_MPI_START + "start(100, list); assert signal.getitimer(signal.ITIMER_REAL)[0] == 0; sys.exit(7)"
    output, _ = guarded("worker-3", program).communicate(timeout=90)
    assert "exited with status 7\n" in output


@pytest.mark.usefixtures("starts_processes")
def test_a_program_with_alarms_of_its_own_keeps_them(guarded):
    own = "signal.setitimer(signal.ITIMER_REAL, 1000)\n"
    check = "start(0.1, list); assert signal.getitimer(signal.ITIMER_REAL)[0] > 900; sys.exit(7)"
    output, _ = guarded("worker-3", own + IN_MPI_START + check).communicate(timeout=90)
    assert "exited with status 7\n" in output


@pytest.mark.usefixtures("starts_processes")
def test_a_process_that_loses_its_guard_ends_and_leaves_a_trace(guarded, tmp_path):
    """Though it is in a call of C that does not return."""
    process = guarded("worker-3", "import ctypes; ctypes.PyDLL(None).pause()")
    pid = int(process.stdout.readline().split()[0])
    file = tmp_path / "lost" / "file"
    assert file.read_bytes() == b""
    process.kill()
    within(20, lambda: not alive(pid), "its end")
    assert file.read_bytes()


ALL_GONE = "the launcher's process on n1 died, and with it all 2 processes there"
HERE = [Rank(rank, "worker", rank, host) for rank, host in enumerate(["n1", "n1", "n2"])]


@pytest.mark.parametrize(
    ("lost", "who", "end"),
    [
        ([], None, ""),
        (["worker-1"], 1, "its guard was killed"),
        (["worker-1", "worker-2", "worker-0"], 1, ALL_GONE),
        (["worker-2", "worker-0"], 2, "its guard, or the launcher's process on n2, died"),
    ],
)
def test_who_was_killed_first(tmp_path, lost, who, end):
    guards = LostGuards(tmp_path / "plan")
    guards.path.mkdir()
    for rank in HERE:
        guards.file(str(rank)).touch()
    for number, name in enumerate(lost):
        guards.file(name).write_text("trace")
        os.utime(guards.file(name), ns=(0, number))
    found = lost_guards(Plan(tuple(HERE), ()), guards)
    assert found == ([] if who is None else [ProcessDeath("worker", who, None, HERE[who].host, end)])
    guards.clear()
    assert not guards.path.exists()
