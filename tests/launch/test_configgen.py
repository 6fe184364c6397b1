import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcps.cli import configgen
from hpcps.cli.main import main as command_line
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.plan import Plan
from hpcps.launch.prepare import launch_folder
from hpcps.records.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("starts_processes")

SCRIPT = Path(__file__).parents[2] / "launcher" / "configgen.py"
EXPERIMENT = """
name = "small"
[topology]
workers = 3
[model]
name = "mlp"
[data]
name = "digits"
[train]
epochs = 1
[[sweep]]
"validation.rule" = [{ kind = "average" }, { kind = "zeno" }]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(EXPERIMENT)
    Path("hosts").write_text("a\nb\nc\nd slots=2\n")
    return tmp_path


def generate(*more):
    return configgen.main(["small.toml", "--hostfile", "hosts", "--dialect", "intel", "-o", "conf", *more])


def test_several_selectors_narrow_each_other(capsys):
    assert generate("--only", "average,zeno", "--only", "1") == 0
    assert [run.label for run in Plan.read(Path("conf.plan.json")).runs] == ["zeno"]


def test_the_script_writes_the_files_and_prints_the_command(folder):
    command = [sys.executable, SCRIPT, "small.toml", "--hostfile", "hosts", "--dialect", "hydra", "-o", "conf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert said[0].startswith("# 2 points on 5 processes; wrote ")
    assert said[1].endswith(f"mpirun -f {folder}/conf.hosts -configfile {folder}/conf")
    assert Path("conf.hosts").read_text() == "a:1\nb:1\nc:1\nd:2\n"
    plan = Plan.read(Path("conf.plan.json"))
    assert [str(rank) for rank in plan.world] == ["worker-0", "worker-1", "worker-2", "validator-0", "server-0"]
    assert [run.label for run in plan.runs] == ["average", "zeno"]
    for run in plan.runs:
        assert run.directory == f"{folder}/results/small/runs/{run.run_id}"
        assert run.spec["run_id"] == run.run_id


def test_what_is_done_is_left_out(capsys):
    assert generate() == 0
    done, left = Plan.read(Path("conf.plan.json")).runs
    RunDirectory(Path(done.directory)).create(done.spec)
    RunDirectory(Path(done.directory)).finish(1.0)
    capsys.readouterr()
    assert generate() == 0
    assert "# 1 of 2 points are done in results" in capsys.readouterr().out
    assert [run.run_id for run in Plan.read(Path("conf.plan.json")).runs] == [left.run_id]
    assert generate("--all") == 0
    assert len(Plan.read(Path("conf.plan.json")).runs) == 2
    Path("conf").unlink()
    capsys.readouterr()
    assert generate("--only", "average") == ExitStatus.NOTHING_LEFT
    said = capsys.readouterr()
    told = "configgen: the point is done in results, so conf is not written; --all includes points that are done\n"
    assert (said.out, said.err) == ("", told)
    assert not Path("conf").exists()


def test_points_of_another_topology_get_a_file_of_their_own(capsys):
    with Path("small.toml").open("a") as file:
        file.write('[[sweep]]\n"topology.workers" = [2, 3]\n')
    assert generate() == 0
    commands = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert [command.rpartition("/")[2] for command in commands] == ["conf", "conf-2"]
    first, second = Plan.read(Path("conf.plan.json")), Plan.read(Path("conf-2.plan.json"))
    assert [len(first.world), len(second.world)] == [4, 5]
    assert [run.spec["index"] for run in first.runs] == [0, 2]
    assert [run.spec["index"] for run in second.runs] == [1, 3]


def test_points_with_an_adversary_get_a_file_of_their_own(capsys):
    with Path("small.toml").open("a") as file:
        Path("hosts").write_text("a slots=6\n")
        file.write("[[sweep]]\nattack = [{ kind = 'none' }, { kind = 'ipm', rate = 0.4 }]\n")
    assert generate("--only", "validation.rule=average") == 0
    plans = [Plan.read(Path(name)) for name in ("conf.plan.json", "conf-2.plan.json")]
    assert [[str(rank) for rank in plan.world].count("adversary-0") for plan in plans] == [0, 1]
    assert "hpcps.execution" in Path("conf-2").read_text()
    assert Path("conf-2").read_text().count(" adversary") == 1
    assert " adversary" not in Path("conf").read_text()


def test_threads_are_set_for_every_rank():
    assert generate("--set", "train.threads=4") == 0
    for line in Path("conf").read_text().splitlines():
        assert " env OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4 MKL_NUM_THREADS=4 " in line


def test_relative_places_become_absolute(monkeypatch, folder):
    monkeypatch.setenv("HPCPS_DATA", "data")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["more", ""]))
    assert generate() == 0
    text = Path("conf").read_text()
    assert f"HPCPS_DATA={folder}/data " in text
    assert f":{folder}/more " in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "topology.workers=9"], "9 workers, 1 validator, 1 server need 11 slots, hosts has 5 on 4 hosts"),
        (["--hostfile", "nowhere"], "there is no host file nowhere"),
        (["--set", "transport.kind=inproc"], "needs no launcher"),
        (["--set", "topology.wrokers=9"], "workers"),
        (["--only", "nothing"], "nothing"),
        (["-o", "small.toml/conf"], "cannot be made"),
        (["-o", "my conf"], "not every launcher passes on: name another FILE for -o\n"),
    ],
)
def test_what_is_wrong_is_said_on_stderr(capsys, more, message):
    assert generate(*more) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.startswith("configgen: ")
    assert "Traceback" not in said.err


def test_a_dialect_that_is_not_spoken_here_gets_a_bare_mpirun(capsys, monkeypatch, folder):
    monkeypatch.setattr("sys.executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder))
    assert generate() == 0
    assert capsys.readouterr().out.splitlines()[1] == f"mpirun -configfile {folder}/conf"


def test_a_python_without_the_packages_is_told(folder):
    """-S: none but the standard library."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, "small.toml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"configgen: {sys.executable} has no module ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "more",
    [["--hostfile", "hosts"], ["--mpirun", "mpirun"], ["--mpirun-options=-v"]],
    ids=lambda more: more[0],
)
def test_what_a_run_in_one_process_would_not_heed_is_refused(capsys, monkeypatch, more):
    for variable in ("PBS_JOBID", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    assert command_line(["run", "small.toml", "--set", "transport.kind=inproc", "--dry-run", *more]) == 2
    assert f"{more[0].partition('=')[0]}: nothing is launched" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["PBS_JOBID", "SLURM_JOB_ID"])
def test_a_job_runs_an_experiment_in_one_process_with_the_hosts_that_its_script_names(capsys, monkeypatch, variable):
    monkeypatch.setenv(variable, "12.server")
    site = ["--hostfile", "hosts", "--mpirun", "mpirun", "--mpirun-options=-v"]
    assert command_line(["run", "small.toml", "--set", "transport.kind=inproc", "--dry-run", "--jobs", "2", *site]) == 0
    said = capsys.readouterr()
    assert "--hostfile and --mpirun and --mpirun-options not used: transport.kind is inproc" in said.out
    assert said.err == ""


def test_the_results_are_where_the_environment_says(capsys, monkeypatch, folder):
    monkeypatch.setenv("HPCPS_RESULTS", str(folder / "scratch"))
    assert command_line(["run", "small.toml", "--set", "transport.kind=inproc", "--dry-run"]) == 0
    assert (folder / "scratch" / "small").is_dir()
    assert command_line(["status"]) == 0
    assert f"no runs in {folder / 'scratch'}/" in capsys.readouterr().out
    assert generate() == 0
    assert len(list(folder.glob("scratch/small/sweeps/*.json"))) == 1
    assert str(folder / "scratch" / "small") in Plan.read(Path("conf.plan.json")).runs[0].directory


def test_two_launches_never_share_a_folder(tmp_path):
    one = launch_folder(tmp_path, "small", {"PBS_JOBID": "12[3].server"})
    other = launch_folder(tmp_path, "small", {"PBS_JOBID": "12[4].server"})
    assert one != other
    assert one.parent == tmp_path / "small" / "launch"
    assert one.name.startswith("12-3-.server-")
    assert launch_folder(tmp_path, "small", {"SLURM_JOB_ID": "7"}).name.startswith("7-")
    assert launch_folder(tmp_path, "small", {}).name[0] == "2"
