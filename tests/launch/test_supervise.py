"""What becomes of a launcher's exit status, and of a launcher that does not end; and of reports of failures."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpcps.launch import supervise as module
from hpcps.launch.cause import ProcessDeath, find_cause
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.launchers import Job, Launch
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.supervise import supervise
from hpcps.records.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("starts_processes")

HANGS = "exec sleep 100"


@pytest.mark.parametrize(
    ("end", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 143", 1), ("exit 130", 1), ("kill -KILL $$", 137), ("kill -TERM $$", 1)],
)
def test_a_launch_that_nobody_stopped_does_not_end_as_if_it_was(tmp_path, end, status):
    """srun ends with 143 when it ended the other ranks itself, because one failed."""
    plan = Plan((Rank(0, "worker", 0, "localhost"),), ())
    job = Job(plan, tmp_path / "conf.plan.json", tmp_path / "conf", Path("sh"), Path("python"))
    outcome = supervise(Launch(job, {}, ("sh", "-c", end)), on_output=lambda line: None, tick=0.05)
    assert (outcome.status, outcome.stopped) == (status, None)


def test_a_process_that_dies_before_the_run_begins_is_reported_apart_from_an_earlier_attempt(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create({})
    directory.fail("server", 0, "n01", 7, "wait", "of the attempt before", at=1.0)
    directory.fail("worker", 2, "n03", 7, "train", "of the attempt before", at=2.0)
    (directory.path / "records" / "worker-2.jsonl").write_text('{"event": "round", "round": 7}\n')
    run = PlannedRun("abc", "one", str(directory.path), {})
    death = ProcessDeath("worker", 2, 17, "n03", "the process was killed by signal 9 (SIGKILL)")
    cause = find_cause(run, [death], directory.failures, Plan((), (run,)))
    assert cause is not None
    assert [failure.error for failure in directory.failures] == [death.end] == [cause.error]
    assert str(cause) == f"worker-2 on n03 failed in round 7, after its record `round`: {death.end}"
    assert [failure.role for failure in directory.earlier_failures] == ["server"]


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Play one run by a launcher that is a line of shell; a launcher soon hangs."""
    monkeypatch.setattr(module, "_OVERDUE", 1.0)
    run = RunDirectory(tmp_path / "run")
    run.create({"run_id": "r"})
    planned = PlannedRun("r", "label", str(run.path), {"run": {"transport": {"timeout": 600.0}}})
    plan = Plan((Rank(0, "worker", 0, "localhost"),), (planned,))
    job = Job(plan, tmp_path / "conf.plan.json", tmp_path / "conf", Path("sh"), Path("python"))
    plan.write(job.plan_file)
    said = []

    def supervised(line, until=None):
        os.utime(job.plan_file, (1, 1))
        launch = Launch(job, {}, ("sh", "-c", line))
        began = time.monotonic()
        outcome = supervise(launch, said.append, tick=0.05, until=until)
        # Far less than what the launcher takes.
        assert time.monotonic() - began < 30
        return outcome, "\n".join(said)

    supervised.run = run
    return supervised


def done(run):
    """Return the line of shell that makes a run done."""
    return f"touch {run.path}/records/worker-0.jsonl; echo {{}} > {run.path}/DONE"


def test_a_launcher_that_hangs_when_all_is_done_is_ended_and_all_is_well(play):
    outcome, said = play(f"{done(play.run)}; {HANGS}")
    assert (outcome.status, str(outcome)) == (0, "finished")
    assert "sh has not ended within 1 s of its processes, and is killed" in said


def test_a_launcher_that_hangs_after_a_failure_is_ended_and_the_failure_told(play):
    report = '{"time": 5, "role": "worker", "index": 0, "host": "h", "round": 3, "phase": "train", "error": "no"}'
    outcome, _ = play(
        f"mkdir {play.run.path}/failure; echo '{report}' > {play.run.path}/failure/worker-0.json; {HANGS}"
    )
    assert outcome.status not in (0, ExitStatus.SUSPENDED)
    assert str(outcome).startswith("run r (label): worker-0 on h failed in round 3, phase train: no")


@pytest.mark.parametrize("between", [False, True], ids=["in a run", "between runs"])
def test_a_launcher_that_hangs_after_its_walltime_is_ended_at_the_checkpoint(play, tmp_path, between):
    asked = f"while [ ! -e {tmp_path}/conf.plan.json.stop ]; do sleep 0.05; done"
    end = f"rm {tmp_path}/conf.plan.json.stop" if between else 'echo \'{"event": "end"}\' >> $RECORD'
    record = f"{play.run.path}/records/worker-0.jsonl"
    begun = "true" if between else 'echo \'{"event": "start"}\' > $RECORD'
    outcome, said = play(f"RECORD={record}; {begun}; {asked}; {end}; {HANGS}", until=time.monotonic() + 0.5)
    assert (outcome.status, outcome.suspended) == (ExitStatus.SUSPENDED, True)
    assert said.count("time is nearly over") == 1


def suspended(run, record, launcher):
    """Return the shell of a launch that begins, is asked to stop, writes this line of a record, and ends so."""
    path = f"{run.path}/records/worker-0.jsonl"
    asked = f"while [ ! -e {run.path.parent}/conf.plan.json.stop ]; do sleep 0.05; done"
    return f"echo '{{}}' > {path}; {asked}; echo '{record}' >> {path}; {launcher}"


@pytest.mark.parametrize("end", ["exit 139", "kill -SEGV $$"])
def test_a_crash_after_the_checkpoint_does_not_harm_the_run(play, end):
    line = suspended(play.run, '{"event": "end", "reason": "suspended"}', end)
    outcome, said = play(line, until=time.monotonic() + 0.5)
    assert (outcome.status, outcome.suspended, outcome.failure) == (ExitStatus.SUSPENDED, True, None)
    assert "sh exited with status 139 after the results had been written" in said or "SIGSEGV) after the" in said


@pytest.mark.parametrize("record", ['{"event": "end", "reason": "failed"}', '{"event": "round", "round": 7}'])
def test_a_crash_before_the_checkpoint_is_a_failure(play, record):
    outcome, said = play(suspended(play.run, record, "exit 139"), until=time.monotonic() + 0.5)
    assert (outcome.status, outcome.suspended) == (139, False)
    assert "after the results" not in said


def test_a_crash_when_all_is_done_is_told_and_all_is_well(play):
    outcome, said = play(f"{done(play.run)}; exit 139")
    assert (outcome.status, str(outcome)) == (0, "finished")
    assert "hpcps: sh exited with status 139 after the results had been written" in said


HYDRA = """[proxy:0@n01] control_cb (/src/pm/hydra/proxy/pmip_cb.c:280): assert (!closed) failed
[proxy:0@n01] HYDT_dmxu_poll_wait_for_event (/src/pm/hydra/lib/tools/demux/demux_poll.c:76): callback returned error
[mpiexec@n01] main (/src/pm/hydra/mpiexec/mpiexec.c:270): process manager error waiting for completion"""


def test_what_hydra_says_of_its_own_end_when_all_is_done_is_one_line(play):
    """Its processes take each other's end for an error if one of them is late."""
    outcome, said = play(f"{done(play.run)}; echo '{HYDRA}'; exit 255")
    assert (outcome.status, str(outcome)) == (0, "finished")
    assert said == "hpcps: sh exited with status 255 after the results had been written"


def test_what_hydra_says_before_is_shown(play):
    outcome, said = play(f"echo '{HYDRA}'; exit 255")
    assert (outcome.status, said) == (255, HYDRA)


def test_a_stop_after_the_last_run_asks_for_nothing(play):
    outcome, _ = play(f"{done(play.run)}; kill -TERM $PPID; sleep 1")
    assert (outcome.status, outcome.stopped) == (143, signal.SIGTERM)
    assert str(outcome) == "stopped by SIGTERM after its last run was done"


def test_nobody_waits_long_for_ranks_that_are_not_there(play):
    """A batch system kills what is left after some 20 seconds."""
    person = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM))
    person.start()
    began = time.monotonic()
    outcome, _ = play(HANGS)
    person.join()
    assert str(outcome) == "stopped by SIGTERM; run it again to go on"
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("status", [0, 143])
def test_a_stopped_launch_says_how_to_go_on_however_its_launcher_ends(play, monkeypatch, status):
    """The launchers of Intel and Open MPI end with a status of their own when their ranks get TERM too."""
    monkeypatch.setattr(module, "NOTICE", 0.1)
    begin = f'echo \'{{"event": "start"}}\' > {play.run.path}/records/worker-0.jsonl'
    outcome, _ = play(f"trap 'exit {status}' TERM; {begin}; kill -TERM $PPID; sleep 30 & wait")
    assert (outcome.status, outcome.stopped) == (143, signal.SIGTERM)
    assert str(outcome) == "stopped by SIGTERM; run it again to go on"


def test_a_killed_launcher_is_named(play):
    outcome, _ = play("kill -KILL $$")
    assert str(outcome).startswith(f"run r (label): sh on {os.uname().nodename} was killed by signal 9 (SIGKILL)")


def test_a_stopped_process_of_the_launcher_is_named(play):
    outcome, said = play(f"{done(play.run)}; sleep 99 & sleep 0.5; kill -STOP $!; wait")
    assert outcome.status == 0
    assert f"(stopped on {os.uname().nodename}: sleep (pid " in said
