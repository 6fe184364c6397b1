"""Runs as jobs: of PBS, whose programs are stand-ins here, and as processes of this machine."""

import os
import time

import pbs_stand_in
import pytest
from small import small

import hpcps
from hpcps.library.content import Content

pytestmark = pytest.mark.usefixtures("starts_processes")

TWO = {"sweep": [{"validation.rule.kind": ["zeno", "average"]}]}


@pytest.fixture
def file(tmp_path):
    def file(**tables):
        path = tmp_path / "small.toml"
        path.write_text(Content.of(small(**tables)).text)
        return path

    return file


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    folder = tmp_path / "pbs"
    folder.mkdir()
    for name, value in pbs_stand_in.install(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_processes_of_this_machine_one_after_another(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCPS_RESULTS", str(tmp_path / "my results"))
    first, second = hpcps.submit(file(**TWO), set={"seed": 7})
    assert (first.label, second.label) == ("zeno", "average")
    assert first.state in ("pending", "running")
    assert second.result(timeout=300).table(events=["evaluation"])["accuracy"].notna().all()
    assert first.result(timeout=300).ids == (first.run_id,)
    with pytest.raises(hpcps.RunError, match="timeout: expects a number of seconds or None, got 'x'"):
        first.result(timeout="x")
    assert (first.state, second.state) == ("done", "done")
    assert "1 run" in first.logs()
    for again in hpcps.submit(file(**TWO), set={"seed": 7}):  # nothing is submitted
        assert (again.state, again.job) == ("done", "")


@pytest.mark.parametrize(("executor", "program"), [("pbs", "qsub"), ("slurm", "sbatch")])
def test_without_the_programs_of_the_batch_system(executor, program, file, tmp_path, monkeypatch):
    for name in ("bash", "dirname", "mkdir", "realpath"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(hpcps.LaunchError, match=f"{executor}: the job was not submitted: there is no {program} here"):
        hpcps.submit(file(), executor=executor)


def test_a_run_that_fails_says_why(file):
    (run,) = hpcps.submit(file(data={"name": "cifar10", "dir": "nowhere", "limit": 480, "test_limit": 60}))
    with pytest.raises(hpcps.RunError, match=rf"run {run.run_id} .*of local: .*nowhere"):
        run.result(timeout=300)
    assert run.state == "failed"


def test_a_limit_of_time_does_not_end_the_job(file):
    (run,) = hpcps.submit(file(train={"epochs": 100000}))
    with pytest.raises(TimeoutError, match=f"run {run.run_id} .* after 0.1 s"):
        run.result(timeout=0.1)
    run.cancel()
    with pytest.raises(hpcps.RunError, match="it was cancelled"):
        run.result(timeout=120)
    assert run.state == "cancelled"


def test_a_job_that_loses_its_hosts_is_submitted_again(pbs, file):
    (pbs / "lose").touch()
    (run,) = hpcps.submit(file(), executor="pbs")
    assert run.job == "1.server"
    run.result(timeout=300)
    assert run.job == "2.server"
    assert "1 run" in run.logs()


def test_a_batch_system_that_does_not_answer_for_a_while(pbs, file, monkeypatch):
    (run,) = hpcps.submit(file(train={"epochs": 100000}), executor="pbs")
    assert run.state == "running"
    (pbs / "silent").touch()
    assert run.state == "running"
    monkeypatch.setattr("hpcps.library.submission._SILENCE", 0.0)
    assert run.state == "failed"
    run.cancel()


def continued(pbs, log, job, successor, state="R"):
    """Let a job end with status 75 after it has named its successor, in its log."""
    with log.open("a") as file:
        file.write(f"2026-01-01T00:00:00 {job} stopped before the end of its walltime, ")
        file.write(f"continues as {successor} (number 1 after the first job)\n")
    (pbs / f"{job}.state").write_text("F 0\n")
    (pbs / f"{successor}.state").write_text(f"{state}\n")


def test_the_log_of_an_earlier_job_names_no_successor(pbs, file):
    (pbs / "lose").touch()
    (run,) = hpcps.submit(file(), executor="pbs")
    continued(pbs, run._request.log, "0.server", "77.server", "F 1")
    assert run.state == "pending"
    assert run.job == "2.server"
    run.result(timeout=300)


def test_a_successor_that_loses_its_hosts_and_is_continued(pbs, file):
    (pbs / "lose").touch()
    (run,) = hpcps.submit(file(), executor="pbs")
    continued(pbs, run._request.log, "1.server", "50.server", "F -3")
    (pbs / "lose").touch()
    assert (run.state, run.job) == ("pending", "2.server")
    continued(pbs, run._request.log, "2.server", "60.server")
    assert (run.state, run.job) == ("running", "60.server")


def test_a_job_that_goes_on_as_another_one_is_cancelled(pbs, file):
    (pbs / "lose").touch()
    (run,) = hpcps.submit(file(), executor="pbs")
    continued(pbs, run._request.log, "1.server", "50.server")
    run.cancel()
    run.cancel()
    assert (pbs / "50.server.state").read_text() == "F 271\n"
    assert (run.state, run.job) == ("cancelled", "50.server")


def test_no_job_is_left_if_one_is_refused(pbs, file):
    (pbs / "refuse").write_text("2")
    with pytest.raises(hpcps.LaunchError, match="Unknown queue"):
        hpcps.submit(file(**TWO, train={"epochs": 100000}), executor="pbs")
    assert (pbs / "1.server.state").read_text() == "F 271\n"


def test_it_is_not_submitted_more_often_than_asked(pbs, file):
    (pbs / "lose").touch()
    (run,) = hpcps.submit(file(), executor="pbs", resubmissions=0)
    with pytest.raises(hpcps.RunError, match=r"job 1.server of pbs: it ended before the run was done"):
        run.result(timeout=60)


def test_a_job_that_is_cancelled(pbs, file):
    (run,) = hpcps.submit(file(train={"epochs": 100000}), executor="pbs", options=["-l", "select=1:ncpus=1"])
    while "1 run" not in run.logs():
        assert run.state == "running", run.logs()
        time.sleep(0.1)
    run.cancel()
    assert run.state == "cancelled"


def test_mistakes_are_plain_errors(pbs, file, tmp_path):
    (pbs / "refuse").write_text("1")
    with pytest.raises(hpcps.LaunchError, match="pbs: the job was not submitted: qsub: Unknown queue"):
        hpcps.submit(file(), executor="pbs")
    with pytest.raises(hpcps.LaunchError, match="there is no 'sge': choose one of pbs, slurm, local"):
        hpcps.submit(file(), executor="sge")
    with pytest.raises(hpcps.LaunchError, match="expects an experiment file, which the jobs read; got a dict"):
        hpcps.submit(small())
    with pytest.raises(hpcps.LaunchError, match=r"missing.toml does not exist: give the path of an experiment file"):
        hpcps.submit("missing.toml")
    with pytest.raises(hpcps.LaunchError, match=f"{tmp_path} is no file: give the path of an experiment file"):
        hpcps.submit(tmp_path)
    for wrong in (-1, "x", True):
        with pytest.raises(hpcps.LaunchError, match="resubmissions: expects a whole number from 0 on"):
            hpcps.submit(file(), executor="pbs", resubmissions=wrong)
    with pytest.raises(hpcps.LaunchError, match="executor local has none"):
        hpcps.submit(file(), options=["-l", "select=1"])
    with pytest.raises(hpcps.LaunchError, match="options: expects a list of texts, a word each"):
        hpcps.submit(file(), executor="pbs", options="-l select=1")
    with pytest.raises(hpcps.LaunchError, match="options: expects a list of texts, a word each"):
        hpcps.submit(file(), executor="pbs", options=3)
    with pytest.raises(hpcps.LaunchError, match="has a blank in its path, which job scripts do not pass on"):
        hpcps.submit(file(), executor="pbs", results=tmp_path / "my results")
    with pytest.raises(hpcps.LaunchError, match="choose one of pbs, slurm, local"):
        hpcps.submit(file(), executor=["pbs"])
