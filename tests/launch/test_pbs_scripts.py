"""The job scripts: what they ask for, and to the letter what they start.

golden/jobs/<script>.<batch system>.txt. UPDATE_GOLDEN=1 writes them anew.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from environments import ROOT

from hpcps.launch.executors import successor_in
from hpcps.launch.hostfile import Host
from hpcps.launch.placement import place
from hpcps.spec.load import load_experiment

pytestmark = pytest.mark.usefixtures("starts_processes")

GOLDEN = Path(__file__).parent / "golden" / "jobs"
LAUNCHER = ROOT / "launcher"
SCRIPTS = [
    "sync_single_validator",
    "sync_two_validators",
    "async_single_validator",
    "async_two_validators",
    "sync_tune_rho",
    "sgd_baseline",
]
every_script = pytest.mark.parametrize("name", SCRIPTS)
both = pytest.mark.parametrize("batch", ["pbs", "slurm"])


def read(batch, name):
    return (LAUNCHER / batch / f"{name}.sh").read_text()


def points_of(text):
    (experiment,) = re.findall(r"^EXPERIMENT=(\S+)$", text, re.MULTILINE)
    return load_experiment(ROOT / experiment).points


def most_hosts(points):
    """Return how many hosts of one slot the largest point takes."""
    topologies = [point.run.topology for point in points]
    return max(
        len({rank.host for rank in place(topology, [Host(f"n{i}", 1) for i in range(99)])}) for topology in topologies
    )


def test_all_scripts_are_there_and_tested():
    for batch in ("pbs", "slurm"):
        there = {path.stem for path in (LAUNCHER / batch).glob("*.sh")}
        assert there - {"common", "site.example", "submit", "site", "command"} == set(SCRIPTS)


@every_script
def test_it_asks_for_what_its_experiment_needs(name):
    text = read("pbs", name)
    points = points_of(text)
    # An oversized job stays in the queue for ever, and a smaller one has no room for all roles.
    assert re.findall(r"^#PBS -l select=(\d+):", text, re.MULTILINE) == [str(most_hosts(points))]
    # A comment says how to submit an array.
    assert {*re.findall(r"-J (\d+-\d+)", text)} <= {f"0-{len(points) - 1}"}


@every_script
def test_the_slurm_twin_asks_for_the_same(name):
    pbs, slurm = read("pbs", name), read("slurm", name)

    def header(option):
        (value,) = re.findall(rf"^#SBATCH --{option}=(.*)$", slurm, re.MULTILINE)
        return value

    select = f"select={header('nodes')}:ncpus={header('cpus-per-task')}"
    assert f"#PBS -l {select}\n" in pbs
    assert f"#PBS -N {header('job-name')}\n" in pbs
    assert f"#PBS -l walltime={header('time')}\n" in pbs
    assert header("ntasks-per-node") == "1"
    assert slurm.count("#SBATCH") == slurm.partition("SCRIPT=")[0].count("#SBATCH")
    assert re.findall(r"-J (\d+-\d+)", pbs) == re.findall(r"--array=(\d+-\d+)", slurm)
    assert re.findall("^EXPERIMENT=.*$", pbs, re.MULTILINE) == re.findall("^EXPERIMENT=.*$", slurm, re.MULTILINE)


def imitation(folder, **programs):
    """Make programs that are bash scripts; return a PATH with them first."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.defpath}"


QSTAT = r"""printf 'Job Id: 12.server\n    Job_Name = x\n    Resource_List.place = scatter\n'
printf '    Resource_List.select = 18:ncp\n\tus=32\n    Resource_List.walltime = 10:00:00\n    Account_Name = proj\n'
printf '    stime = %s\n    project = _pbs_project_default\n' "$(date -d '-1 hour' '+%a %b %e %T %Y')" """
PYTHON = r"""[ "$3" != --version ] || exit 0
printf '%s\n' "$@" >"$CALLED/arguments"
echo "$PATH" >"$CALLED/path"
env | grep -E '^(HPCPS_|ONLY|ARGS)' | sort >"$CALLED/environment"
exit "${STATUS:-0}" """


@pytest.fixture
def start(tmp_path):
    """Start a job script as the batch system does: a copy, with its variables and little else."""

    def start(batch, name, programs=(), **variables):
        spool = tmp_path / "spool"
        spool.mkdir(exist_ok=True)
        hosts = [f"n{number:02d}" for number in range(1, 4)]
        (spool / "nodefile").write_text("\n".join(hosts) + "\n")
        environment = {"HOME": str(spool), "CALLED": str(spool), "HPCPS_PYTHON": str(spool / "bin" / "python")}
        if batch == "pbs":
            environment |= {"PBS_JOBID": "12.server", "PBS_NODEFILE": str(spool / "nodefile"), "PBS_O_QUEUE": "workq"}
            environment |= {"PBS_O_WORKDIR": str(ROOT)}
            tools = {"qstat": QSTAT}
        else:
            environment |= {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[01-03]", "SLURM_SUBMIT_DIR": str(ROOT)}
            tools = {"scontrol": f"cat {spool}/nodefile", "squeue": "[ $# -eq 5 ] && echo 9:00:00"}
        environment["PATH"] = imitation(spool / "bin", python=PYTHON, **{**tools, **dict(programs)})
        script = shutil.copy(LAUNCHER / batch / f"{name}.sh", spool / "12.server.SC")
        return subprocess.run(
            ["bash", script], env={**environment, **variables}, cwd=spool, capture_output=True, text=True, timeout=90
        )

    return start


def arguments(tmp_path):
    return (tmp_path / "spool" / "arguments").read_text().splitlines()


@both
@every_script
def test_golden(start, tmp_path, name, batch):
    """The header, and what the job then runs."""
    done = start(batch, name, ARGS="--set train.epochs=20", ONLY="'0,3'")
    assert (done.returncode, done.stderr) == (0, "")
    header = [line for line in read(batch, name).splitlines() if line.startswith(("#PBS", "#SBATCH"))]
    called = [re.sub(r"/tmp/tmp\.\w+", "HOSTS", word).replace(str(tmp_path), "TMP") for word in arguments(tmp_path)]
    # The imitation of qstat says that the job began an hour ago.
    if "--walltime" in called and batch == "pbs":
        left = called.index("--walltime") + 1
        assert 9 * 3600 - 60 <= int(called[left]) <= 9 * 3600
        called[left] = "SECONDS"
    text = "\n".join([*header, "", "python " + " ".join(called), ""])
    golden = GOLDEN / f"{name}.{batch}.txt"
    if "UPDATE_GOLDEN" in os.environ:
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@both
@pytest.mark.parametrize(
    ("command", "called"),
    [
        (
            "search experiments/mine.toml",
            "search experiments/mine.toml --hostfile HOSTS --only 0,3 --walltime LEFT --set a=1",
        ),
        (
            "run experiments/mine.toml",
            "run experiments/mine.toml --hostfile HOSTS --only 0,3 --walltime LEFT --set a=1",
        ),
        ("evaluate mine", "evaluate mine --only 0,3 --walltime LEFT --set a=1"),
        ("replay mine", "replay mine --only 0,3 --set a=1"),
    ],
)
def test_a_job_of_another_command(start, tmp_path, batch, command, called):
    done = start(batch, "command", HPCPS_COMMAND=command, ARGS="--set a=1", ONLY="0,3")
    assert (done.returncode, done.stderr) == (0, "")
    assert said_to_hpcps(tmp_path) == called


@both
@pytest.mark.parametrize(
    ("command", "called"),
    [
        ("doctor", "doctor --json"),
        (
            "launch -n 4 python train.py",
            "launch --hostfile HOSTS --mpirun-options=-iface ib0 --walltime LEFT -n 4 python train.py --json",
        ),
    ],
)
def test_a_job_of_a_command_without_points(start, tmp_path, batch, command, called):
    settings = {"HPCPS_COMMAND": command, "HPCPS_MPIRUN_OPTIONS": "-iface ib0"}
    assert start(batch, "command", ARGS="--json", **settings).returncode == 0
    assert said_to_hpcps(tmp_path) == called
    path = (tmp_path / "spool" / "path").read_text()
    assert path.count(f"{tmp_path}/spool/bin:") == 1 + command.startswith("launch")
    done = start(batch, "command", ONLY="3", **settings)
    assert done.returncode == 2
    assert f"hpcps {command.split()[0]} has no points to choose: leave out ONLY" in done.stderr


@both
@pytest.mark.parametrize("command", ["", "plot fig3"])
def test_a_command_that_is_none_for_a_job(start, batch, command):
    done = start(batch, "command", HPCPS_COMMAND=command)
    assert done.returncode == 2
    assert "is no command for a job: give run, search, launch, replay, evaluate or doctor" in done.stderr


def said_to_hpcps(tmp_path):
    words = arguments(tmp_path)
    assert words[:2] == ["-m", "hpcps"]
    for option, placeholder in (("--hostfile", "HOSTS"), ("--walltime", "LEFT")):
        if option in words:
            words[words.index(option) + 1] = placeholder
    return " ".join(words[2:])


def test_an_unknown_walltime_is_left_out(start, tmp_path):
    assert start("pbs", "sync_tune_rho", {"qstat": "exit 1"}).returncode == 0
    assert "--walltime" not in arguments(tmp_path)
    assert start("slurm", "sync_tune_rho", {"squeue": "echo UNLIMITED"}).returncode == 0
    assert "--walltime" not in arguments(tmp_path)


def test_a_walltime_in_seconds_that_has_just_begun(start, tmp_path):
    assert start("pbs", "sync_tune_rho", {"qstat": "echo '    Resource_List.walltime = 5400'"}).returncode == 0
    words = arguments(tmp_path)
    assert words[words.index("--walltime") + 1] == "5400"


@both
def test_without_an_environment_the_job_says_what_to_set_up(start, tmp_path, batch):
    """A clone without .venv, on a machine whose python3 has no hpcps."""
    shutil.copytree(LAUNCHER, tmp_path / "clone" / "launcher")
    python = 'echo "Traceback ..." >&2; echo "ModuleNotFoundError: No module named pydantic" >&2; exit 1'
    done = start(batch, "sync_tune_rho", {"python3": python}, HPCPS_HOME=str(tmp_path / "clone"), HPCPS_PYTHON="")
    assert done.returncode == 2
    assert "python3 cannot run hpcps: ModuleNotFoundError: No module named pydantic\n" in done.stderr
    assert "python3 -m venv .venv && .venv/bin/pip install" in done.stderr
    assert f"HPCPS_PYTHON in launcher/{batch}/site.sh" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_log_of_a_job_has_a_folder_even_if_the_job_was_submitted_elsewhere(start, tmp_path):
    """PBS writes the log when the job has ended, and does not make the folder that `-o` names."""
    for folder, settings, status in (
        ("here", {"HPCPS_HOME": str(ROOT)}, 0),
        ("there", {}, 2),  # what is wrong is in the log
    ):
        (tmp_path / folder).mkdir()
        assert start("pbs", "sgd_baseline", PBS_O_WORKDIR=str(tmp_path / folder), **settings).returncode == status
        assert [path.name for path in (tmp_path / folder).iterdir()] == ["logs"]


def test_logs_of_jobs_are_no_part_of_the_source(tmp_path):
    """Neither those that the scripts write, nor those of other job scripts with the names that batch systems give."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("logs/12.server.OU", "logs/12[3].server.OU", "hpcps_fig3.o123", "mine.e123.4", "slurm-12_3.out"):
        (tmp_path / name).write_text("what a job printed")
    listed = subprocess.run(
        ["git", "-C", tmp_path, "ls-files", "-o", "--exclude-standard"], capture_output=True, text=True
    )
    assert listed.stdout.split() == [".gitignore"]


def test_submit_makes_the_folder_of_the_logs(tmp_path):
    shutil.copytree(LAUNCHER / "pbs", tmp_path / "clone" / "launcher" / "pbs")
    path = imitation(tmp_path / "bin", qsub='ls; printf "%s\\n" "$@"')
    submit = tmp_path / "clone" / "launcher" / "pbs" / "submit.sh"
    script = submit.with_name("sgd_baseline.sh")
    done = subprocess.run([submit, script, "-J", "0-3"], env={"PATH": path}, capture_output=True, text=True, timeout=90)
    assert done.stdout.splitlines() == ["launcher", "logs", "-J", "0-3", str(script)]


@both
def test_a_mistake_in_arguments_that_lost_their_quotes_names_the_file_for_them(start, batch):
    hint = "ARGS=@FILE (docs/how-to/cluster.md)"
    # What qsub makes of ARGS=--set attack={kind="random", rate=0.3}
    assert hint in start(batch, "sgd_baseline", STATUS="2", ARGS="--set attack={kind=random").stderr
    for arguments, status in (
        ("--set train.epochs=20", "2"),
        ("@mine.args", "2"),
        ("--set attack={kind=random", "1"),
    ):
        assert hint not in start(batch, "sgd_baseline", STATUS=status, ARGS=arguments).stderr


def test_the_site_profile_is_read_and_a_subjob_takes_its_point(start, tmp_path):
    profile = tmp_path / "site.sh"
    profile.write_text("site_setup() {\n  false\n  HPCPS_RESULTS=/scratch HPCPS_MPIRUN_OPTIONS='-iface lo'\n}\n")
    assert start("pbs", "sync_tune_rho", HPCPS_SITE=str(profile), PBS_ARRAY_INDEX="3").returncode == 0
    words = arguments(tmp_path)
    assert words[words.index("--only") + 1] == "3"
    assert "--mpirun-options=-iface lo" in words
    assert "HPCPS_RESULTS=/scratch" in (tmp_path / "spool" / "environment").read_text().splitlines()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PBS_ARRAY_INDEX": "3", "ONLY": "zeno"}, "ONLY and an array"),
        ({"PBS_O_WORKDIR": "/"}, "/ is no hpcps repository"),
        ({"HPCPS_SITE": "/nowhere"}, "there is no site profile /nowhere"),
        ({"HPCPS_SITE": "fails.sh"}, "site_setup in fails.sh failed with status 127"),
    ],
)
def test_what_stops_a_job_before_it_runs(start, tmp_path, variables, message):
    profile = tmp_path / "fails.sh"
    profile.write_text("site_setup() {\n  module load mpich\n}\n")
    names = {name: value.replace("fails.sh", str(profile)) for name, value in variables.items()}
    done = start("pbs", "sync_tune_rho", **names)
    assert done.returncode == 2
    assert message.replace("fails.sh", str(profile)) in done.stderr
    assert not (tmp_path / "spool" / "arguments").exists()


@both
def test_a_container_needs_its_program_and_an_image(start, tmp_path, batch):
    done = start(batch, "command", HPCPS_COMMAND="doctor", CONTAINER="/nowhere.sif")
    assert done.returncode == 2
    assert "CONTAINER=/nowhere.sif needs apptainer or singularity on every host: load its module" in done.stderr
    done = start(batch, "command", {"singularity": "exit 1"}, HPCPS_COMMAND="doctor", CONTAINER="/nowhere.sif")
    assert done.returncode == 2
    assert "there is no image CONTAINER=/nowhere.sif: build it with launcher/containers/hpcps.def" in done.stderr
    (tmp_path / "image.sif").write_text("")
    image = str(tmp_path / "image.sif")
    settings = {"HPCPS_COMMAND": "doctor", "CONTAINER": image, "HPCPS_RESULTS": f"{tmp_path}/results"}
    done = start(batch, "command", {"apptainer": "echo FATAL: no loop device >&2; exit 255"}, **settings)
    assert done.returncode == 2
    assert "cannot run hpcps: FATAL: no loop device" in done.stderr
    assert f"the image CONTAINER={image} needs {tmp_path}/spool/bin/python with the packages of hpcps" in done.stderr


@both
def test_the_python_of_a_job_is_that_of_its_image(start, tmp_path, batch):
    """The imitation of apptainer notes how it is called, and executes the command."""
    (tmp_path / "image.sif").write_text("")
    engine = 'echo "$*" >>"$CALLED/engine"; shift 3; while [[ $1 == -* ]]; do shift 2; done; shift; exec "$@"'
    results = f"{tmp_path}/results"
    settings = {"HPCPS_RESULTS": results, "HPCPS_CONTAINER_OPTIONS": "--bind /scratch"}
    image = str(tmp_path / "image.sif")
    done = start(batch, "sync_tune_rho", {"apptainer": engine}, CONTAINER=image, **settings)
    assert (done.returncode, done.stderr) == (0, "")
    folder = f"{results}/containers/12{'.server' * (batch == 'pbs')}"
    words = arguments(tmp_path)
    assert words[words.index("--hostfile") + 1] == f"{folder}/hosts"
    called = (tmp_path / "spool" / "engine").read_text().splitlines()[-1]
    assert called.startswith(f"exec --bind {ROOT} --bind {results} --bind /scratch ")
    assert f" {image} {tmp_path}/spool/bin/python -m hpcps run experiments/" in called
    assert f"HPCPS_CONTAINER={folder}" in (tmp_path / "spool" / "environment").read_text().splitlines()


QSUB = r"""printf '%s\n' "$@" >"$CALLED/qsub"; pwd >>"$CALLED/qsub"
env | grep -E '^(HPCPS_SUCC|ONLY|ARGS)' | sort >>"$CALLED/qsub"
echo 13.server"""


def successor(start, tmp_path, **variables):
    done = start("pbs", "sync_two_validators", {"qsub": QSUB}, STATUS="75", **variables)
    assert done.returncode == 0, done.stderr
    assert successor_in(done.stdout, "12.server") == "13.server"
    return (tmp_path / "spool" / "qsub").read_text().splitlines()


def test_a_successor_is_submitted_as_the_job_was(start, tmp_path):
    words = successor(start, tmp_path, ARGS='--set train.lr_decay.epochs=[4,6] --set model.name="mlp"', ONLY="'0,3'")
    resources = ["-l", "select=18:ncpus=32", "-l", "place=scatter", "-l", "walltime=10:00:00"]
    names = "ONLY,ARGS,HPCPS_HOME,HPCPS_PYTHON,HPCPS_SUCCESSOR"
    place = ["-q", "workq", "-A", "proj", "-v", names, "launcher/pbs/sync_two_validators.sh"]
    settings = ['ARGS=--set train.lr_decay.epochs=[4,6] --set model.name="mlp"', "HPCPS_SUCCESSOR=1", "ONLY=0,3"]
    assert words == [*resources, *place, str(ROOT), *settings]


def test_the_successor_of_a_subjob_has_its_point_alone_and_what_the_site_wants(start, tmp_path):
    profile = tmp_path / "site.sh"
    profile.write_text("QSUB_OPTIONS=(-A other -q prod)\n")
    words = successor(start, tmp_path, PBS_ARRAY_INDEX="7", HPCPS_SUCCESSOR="2", HPCPS_SITE=str(profile))
    assert words[6:10] == ["-A", "other", "-q", "prod"]
    assert "-J" not in words
    assert words[-2:] == ["HPCPS_SUCCESSOR=3", "ONLY=7"]


# Job 15 waits for the job alone, 16 also for another one, others wait for 17, and 18 belongs to someone else.
CHAINED = r"""case $2 in
12*) printf '    depend = beforeok:15.server@server:17.server@server:18.server@server,beforeany:16.server@server\n' ;;
15.server) printf '    depend = afterok:%s@server\n' "$OWN" ;;
16.server) printf '    depend = afterok:9.server@server,aftera\n\tny:%s@server\n' "$OWN" ;;
17.server) printf '    depend = afterok:%s@server,beforeok:20.server@server\n' "$OWN" ;;
18.server) printf '    depend = afterok:%s@server\n' "$OWN" ;;
esac"""
QALTER = """[ "$3" != 18.server ] || { echo "qalter: Unauthorized Request 18.server" >&2; exit 1; }
echo "$*" >>"$CALLED/qalter" """


@pytest.mark.parametrize(
    ("own", "new", "array"),
    [
        ("12.server", "13.server", {}),
        ("12[].server", "12[].server:13.server", {"PBS_ARRAY_INDEX": "3", "PBS_ARRAY_ID": "12[].server"}),
    ],
)
def test_jobs_that_wait_for_a_job_wait_for_its_successor(start, tmp_path, own, new, array):
    programs = {"qsub": QSUB, "qstat": CHAINED, "qalter": QALTER}
    done = start("pbs", "sync_two_validators", programs, STATUS="75", OWN=own, **array)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "spool" / "qalter").read_text().splitlines() == [
        f"-W depend=afterok:{new} 15.server",
        f"-W depend=afterok:9.server,afterany:{new} 16.server",
    ]
    assert "qalter: Unauthorized Request 18.server" in done.stderr
    assert "17.server, 18.server still wait for the end of this job only: let them wait for 13.server" in done.stderr


@pytest.mark.parametrize("status", ["0", "1", "2", "143"])
def test_no_other_status_has_a_successor(start, tmp_path, status):
    done = start("pbs", "sync_two_validators", {"qsub": QSUB}, STATUS=status)
    assert done.returncode == int(status)
    assert not (tmp_path / "spool" / "qsub").exists()


def test_a_successor_that_cannot_be_submitted_is_told(start):
    done = start("pbs", "sync_two_validators", {"qsub": "echo 'qsub: no' >&2; exit 159"}, STATUS="75", ONLY="zeno")
    assert done.returncode == 1
    assert "qsub: no" in done.stderr
    assert "its successor could not be submitted" in done.stderr
    assert "submit launcher/pbs/sync_two_validators.sh again with ONLY=zeno" in done.stderr


def test_submit_gives_sbatch_what_the_site_wants(tmp_path):
    profile = tmp_path / "site.sh"
    profile.write_text("SBATCH_OPTIONS=(--account=mine --partition=prod)\n")
    path = imitation(tmp_path / "bin", sbatch='pwd; printf "%s\\n" "$@" "$HPCPS_SITE"')
    script = LAUNCHER / "slurm" / "sgd_baseline.sh"

    def submit(site):
        command = [LAUNCHER / "slurm" / "submit.sh", script, "--time=1:00:00"]
        environment = {"PATH": path, "HPCPS_SITE": site}
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=90)

    wanted = [str(ROOT), "--account=mine", "--partition=prod", "--time=1:00:00", str(script), str(profile)]
    assert submit("site.sh").returncode == 2  # where it was typed is not where it is read
    assert submit(str(profile)).stdout.splitlines() == wanted
    assert "there is no site profile nowhere" in submit("nowhere").stderr
