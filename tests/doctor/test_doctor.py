"""`hpcps doctor` with each MPI, without one, and with launchers that are broken, hang or crash."""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from environments import DIALECTS, ROOT, interpreter
from python_libraries import library_path
from running_processes import status, within

from hpcps.cli.main import main
from hpcps.launch import detect
from hpcps.launch.batch import Allocation
from hpcps.launch.bounded import ask
from hpcps.launch.doctor import diagnosis
from hpcps.launch.doctor.child import PROBES
from hpcps.launch.doctor.diagnosis import CoreCount, Diagnosis, MpiState, diagnose
from hpcps.launch.gpu_mpi import start_pair
from hpcps.launch.hostfile import Host
from hpcps.launch.launchers import Hydra
from hpcps.launch.plan import ACCEPTED

pytestmark = pytest.mark.usefixtures("starts_processes")

HYDRA = 'echo "HYDRA build details:"; echo "    Version: 5"'
LIBRARY = {"mpi4py": "4", "library": "MPICH 5", "path": "/lib/libmpi.so"}
FILE = """
name = "needs"
[topology]
workers = 2
validators = 1
servers = 1
[model]
name = "mlp"
[data]
name = "digits"
[train]
epochs = 1
"""


def skip_without_own_mpi():
    """Skip a test that launches in this environment if it has no MPI."""
    if interpreter("mpich").absolute() != Path(sys.executable).absolute():
        pytest.skip("this Python is not that of .venv, which has an MPI")


def environment(**changes):
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def call(python, *arguments, **changes):
    """Call `hpcps doctor` in a process of its own; return its exit status and what it printed."""
    command = [python, "-m", "hpcps", "doctor", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**changes), timeout=200)
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout


def alive_in_session(session):
    """Return the processes of a session that are not zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, _group, own, *_ = status(path.parent.name)
            found += [path] if own == session and state not in "ZX" else []
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "needs.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def mpirun(tmp_path, monkeypatch):
    """Make the launcher of this machine a shell script, and wait for it for two seconds."""

    def make(script):
        path = tmp_path / "mpirun"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(detect, "find_mpirun", lambda: path)
        monkeypatch.setattr(diagnosis, "DEADLINE", 2.0)
        return diagnosis._mpi(LIBRARY, in_job=False)

    return make


@pytest.fixture
def good():
    """A machine on which everything works, without a GPU."""
    return Diagnosis(
        mpi=MpiState(library="MPICH 5", launcher="hydra", mpirun="/mpirun", works=True),
        buffers={"direct": "no driver", "auto": "staged"},
        gpus={"driver": False, "found": []},
        mps={"usable": False, "why": "there is no NVIDIA driver"},
        cores=CoreCount(8, 8, None),
        memory={"in_place": True, "shortage": None, "shm": None, "shm_problem": ""},
        kernels={"numba": "1", "cached": True, "problem": "", "folder": "/"},
        software={"numpy": "2", "torch": "2"},
        batch=Allocation(),
    )


@pytest.fixture
def doctor(good, file, monkeypatch, capsys):
    """Examine the file on a given machine; return the exit status and the text."""

    def call(machine=good, *arguments):
        monkeypatch.setattr(diagnosis, "diagnose", lambda: machine)
        status = main(["doctor", str(file), *arguments])
        return status, capsys.readouterr().out

    return call


OTHERS = [pytest.param(name, marks=pytest.mark.soak) for name in ("openmpi", "intel")]


@pytest.mark.parametrize("name", ["mpich", *OTHERS])
def test_each_mpi(name):
    status, printed = call(interpreter(name), "--json")
    found = json.loads(printed)
    mpi = found["mpi"]
    assert status == 0
    assert mpi["library"].startswith({"mpich": "MPICH Version: 5", "openmpi": "Open MPI v5", "intel": "Intel(R)"}[name])
    assert mpi["launcher"] == DIALECTS[name]
    assert (mpi["works"], mpi["problem"], mpi["cuda_aware"]) == (True, "", False)
    assert "MPIX_Query_cuda_support() says no" in mpi["determined"]
    assert "not tried: there is no NVIDIA driver" in mpi["determined"]
    assert found["shared_memory"]["in_place"]
    assert found["cores"]["affinity"] == len(os.sched_getaffinity(0))
    assert found["kernels"]["numba"]


def test_no_mpi_at_all(tmp_path, file):
    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    own = next((tmp_path / "bare").glob("lib/*/site-packages"))
    (own / "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})")
    status, printed = call(
        python, file, "--results", tmp_path / "results", PATH="/usr/bin:/bin", LD_LIBRARY_PATH=library_path()
    )
    assert status == 69
    assert "MPI            does not work: mpi4py loads no MPI library: " in printed
    assert 'transport.kind = "mpi": mpi4py loads no MPI library' in printed
    assert not (tmp_path / "results").exists()


def test_a_launcher_that_is_none(mpirun):
    found = mpirun("echo nonsense >&2; exit 127")
    assert "mpirun is none of" in found.problem
    assert "'nonsense'" in found.problem
    assert not found.works


def test_a_launcher_that_hangs(mpirun, tmp_path):
    # The descendant keeps the output open, and ignores TERM.
    started = time.monotonic()
    found = mpirun(f"(trap '' TERM; echo $$ >{tmp_path}/pid; sleep 600) & wait")
    assert "mpirun --version does not answer: within 2 s" in found.problem
    assert time.monotonic() - started < 10
    session = (tmp_path / "pid").read_text().strip()
    within(10, lambda: not alive_in_session(session), "the end of its processes")


def test_a_launcher_whose_ranks_hang(mpirun):
    found = mpirun(f'[ "$1" = --version ] && {{ {HYDRA}; exit; }}\nsleep 600')
    assert found.launcher == "hydra"
    assert found.problem == "mpirun does not answer within 2 s"
    assert (found.works, found.cuda_aware) == (False, None)


def test_ranks_that_crash(mpirun):
    found = mpirun(f'[ "$1" = --version ] && {{ {HYDRA}; exit; }}\nkill -SEGV $$')
    assert found.problem == "mpirun was killed by SIGSEGV"


def test_a_launcher_of_another_mpi(mpirun, monkeypatch):
    # It starts each rank without telling it of the others, as the mpirun of another MPI does.
    skip_without_own_mpi()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = f'[ "$1" = --version ] && {{ {HYDRA}; exit; }}\neval "conf=\\${{$#}}"\n$(sed -n "s/^-n 2 //p" "$conf")'
    monkeypatch.setattr(diagnosis, "start_pair", lambda mpi, seconds: start_pair(mpi, 60.0))
    found = mpirun(script)
    assert "starts 1 rank instead of 2: it belongs to another MPI" in found.problem


def test_a_launcher_that_needs_a_job(tmp_path, monkeypatch):
    path = tmp_path / "srun"
    path.write_text("#!/bin/sh\necho slurm-wlm 22.05.8")
    path.chmod(0o755)
    monkeypatch.setattr(detect, "find_mpirun", lambda: path)
    found = diagnosis._mpi(LIBRARY, in_job=False)
    assert found.problem == "srun starts processes only in a job, and this is none"


@pytest.mark.parametrize(
    ("direct", "aware", "text"),
    [
        (ACCEPTED, True, "was sent and came back unchanged; MPIX_Query_cuda_support() says no"),
        ("through MPI: mpirun was killed by SIGSEGV", False, "killed by SIGSEGV; MPIX_Query_cuda_support() says no"),
    ],
)
def test_the_exchange_of_device_memory_decides_whether_mpi_takes_it(direct, aware, text, monkeypatch):
    monkeypatch.setattr(diagnosis, "absence", lambda: "")
    state = MpiState(works=True, stated={"MPIX_Query_cuda_support": False})
    found = diagnosis._with_cuda_awareness(state, direct)
    assert found.cuda_aware is aware
    assert found.determined.endswith(text)


def nvidia_smi(folder, monkeypatch, command):
    """Put a program of this name first on PATH."""
    smi = folder / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{command}")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_probe_that_hangs_is_named(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "sleep 600")
    monkeypatch.setattr(diagnosis, "DEADLINE", 3.0)
    assert diagnosis.probe(["gpus"]) == {"gpus": {"problem": "the probe does not answer within 3 s"}}


def test_a_probe_that_crashes_takes_nothing_from_the_others(tmp_path, monkeypatch):
    nvidia_smi(tmp_path, monkeypatch, "kill -9 $PPID")
    found = diagnosis.probe(["memory", "gpus", "nonsense"])
    assert "in_place" in found["memory"]
    assert found["gpus"] == {"problem": "the probe was killed by SIGKILL"}
    assert found["nonsense"] == {"problem": "the probe failed: KeyError: 'nonsense'"}


def test_compiled_kernels_are_found(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    subprocess.run([sys.executable, "-m", "hpcps.numerics.kernels"], check=True, capture_output=True)
    assert diagnosis.probe(["kernels"])["kernels"]["cached"] is True


def test_every_probe_may_fail(monkeypatch, capsys):
    crash = {name: {"problem": "the probe was killed by SIGSEGV"} for name in PROBES}
    monkeypatch.setattr(diagnosis, "probe", lambda names: {name: dict(crash[name]) for name in names})
    assert diagnose().mpi.problem.startswith("mpi4py loads no MPI library: the probe was killed by SIGSEGV")
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.count("the probe was killed by SIGSEGV") == 6


def test_a_command_is_ended_at_its_deadline():
    answer = ask(["sh", "-c", "trap '' TERM; echo here; sleep 600"], 1.0)
    assert (answer.problem, answer.output, answer.expired) == ("does not answer within 1 s", "here\n", True)
    assert ask(["/nowhere/at/all"], 1.0).problem == "cannot be started: No such file or directory"
    assert ask(["sh", "-c", "echo why >&2; exit 3"], 5.0).problem == "ended with status 3: why"


def test_needs_that_are_met(doctor):
    status, printed = doctor()
    assert status == 0
    assert printed.splitlines()[-1].endswith("needs.toml: this machine meets its needs")


@pytest.mark.parametrize(
    ("changes", "arguments", "unmet"),
    [
        ({"mpi": MpiState(problem="no mpirun")}, (), 'transport.kind = "mpi": no mpirun'),
        ({}, ("--set", "train.device=cuda"), 'train.device = "cuda": there is no GPU'),
        (
            {
                "gpus": {"driver": True, "found": ["H200"]},
                "software": {"torch": "2+cpu", "cuda": {"built": None, "available": False}},
            },
            ("--set", "train.device=cuda"),
            "torch 2+cpu is a build for CPUs, and sees no GPU",
        ),
        (
            {"batch": Allocation("PBS", "1.pbs", (Host("n1", 2),))},
            (),
            "topology: 2 workers, 1 validator, 1 server need",
        ),
        (
            {
                "mpi": MpiState(works=True, shm=5e6),
                "memory": {"in_place": True, "shm": {"size": 64e6, "free": 12e6}, "shortage": None, "shm_problem": ""},
            },
            (),
            'transport.kind = "mpi": MPI needs 33.6 MB of /dev/shm for 4 processes on one host',
        ),
        ({}, ("--set", "transport.device_buffers=direct"), 'transport.device_buffers = "direct": no driver'),
        ({}, ("--set", "data.name=cifar10"), 'data.name = "cifar10": no cifar10 in'),
        ({}, ("--results", "/dev/null/results"), "results: /dev/null cannot be written"),
    ],
)
def test_needs_that_are_not_met(doctor, good, changes, arguments, unmet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCPS_DATA", raising=False)
    status, printed = doctor(replace(good, **changes), *arguments)
    assert status == 69
    assert "1 need is not met here\n" in printed
    assert unmet in printed


def test_notes_do_not_change_the_status(doctor, good):
    few = replace(good, cores=CoreCount(8, 8, 1.5), memory={**good.memory, "in_place": False})
    status, printed = doctor(few)
    assert status == 0
    assert "note: 4 processes share 1.5 cores" in printed
    assert "note: processes cannot read each other's memory" in printed


def test_who_gets_which_gpu_is_said(doctor, good, file, monkeypatch, capsys):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = Allocation("PBS", "1.pbs", (Host("n1", 2, gpu_count=2), Host("n2", 2, ("GPU-a",))))
    _, printed = doctor(replace(good, batch=job))
    assert "  GPUs on n1: worker-0 visible GPU 0, validator-0 visible GPU 1\n" in printed
    assert "  GPUs on n2: worker-1 GPU GPU-a\n" in printed
    two = replace(good, gpus={"driver": True, "found": ["H200", "H200"]}, mps={"usable": True, "control": "/mps"})
    _, printed = doctor(two)
    assert "note: all processes of a host use the first of its 2 GPUs: name the others with HPCPS_GPUS=0,1" in printed
    _, printed = doctor(two, "--set", "train.device=cpu")
    assert "GPUs" not in printed.partition("needs.toml")[2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    line = "GPUs on localhost: worker-0 visible GPU 0, worker-1 visible GPU 1, validator-0 visible GPU 0\n"
    assert line in doctor(two)[1]
    assert json.loads(doctor(two, "--json")[1])["needs"]["gpus"] == [line.removeprefix("GPUs on ").strip()]
    assert main(["check", str(file)]) == 0
    assert line in capsys.readouterr().out


def test_json(doctor, good):
    status, printed = doctor(replace(good, mpi=MpiState(problem="no mpirun")), "--json")
    found = json.loads(printed)
    assert status == 69
    assert found["device_buffers"]["auto"] == "staged"
    assert found["needs"]["unmet"] == ['transport.kind = "mpi": no mpirun']
    assert found["batch"] == {"system": "", "job": "", "hosts": [], "problem": "", "commands": []}


def test_a_file_with_mistakes_has_the_status_of_mistakes(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text('name = "x"\n[train]\nepoch = 1\n')
    assert main(["doctor", str(tmp_path / "bad.toml")]) == 2
    assert "epoch" in capsys.readouterr().err


def test_a_folder_of_temporary_files_with_a_blank_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "my files"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    _, problem = start_pair(detect.Mpi(Hydra(), Path("mpirun")), 5.0)
    assert problem.startswith(f"the plan {folder}/")
    assert problem.endswith("set TMPDIR to a folder without them")
