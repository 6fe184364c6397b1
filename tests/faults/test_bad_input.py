"""What is wrong with what was asked for is said once, before anything is launched; exit status 2, no traceback."""

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fault_runs import assert_quiet, hpcps

from hpcps.cli.main import main

IDX = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}


@pytest.fixture
def bad(experiment: Path) -> Path:
    """A folder of things that are not what they should be."""
    folder = experiment.parent
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "torn.toml").write_text('name = "torn')
    (folder / "not executable").touch()
    return folder


ARGUMENTS = {
    "no file": (["run", "nothere.toml"], ["nothere.toml: there is no such file"]),
    "a folder": (["run", "folder"], ["folder: cannot be read", "directory"]),
    "no text": (["run", "binary"], ["binary:2: not UTF-8"]),
    "no TOML": (["run", "torn.toml"], ["torn.toml:1: not valid TOML"]),
    "nothing in it": (["run", "empty"], ["empty: 5 mistakes", "topology.workers: required but missing"]),
    "a value": (["run", "faults.toml", "--set", "train.epochs=-1"], ["--set train.epochs=-1", "a whole number from 1"]),
    "a key": (["run", "faults.toml", "--set", "topologgy.workers=3"], ["unknown key: did you mean topology?"]),
    "no assignment": (["run", "faults.toml", "--set", "train"], ["--set train: expects key=value"]),
    "no point": (["run", "faults.toml", "--only", "7"], ['--only "7": no point matches', "faults"]),
    "an empty selector": (["run", "faults.toml", "--only", ""], ['--only "" has no terms']),
    "a rule": (["run", "faults.toml", "--set", "validation.rule={kind='zeno'}"], ["zeno compares", "validators = 0"]),
    "no data": (
        ["run", "faults.toml", "--set", "data.name=mnist", "--set", "data.dir=folder"],
        ["no mnist in folder", "hpcps data mnist --dir folder"],
    ),
    "data in a file": (
        ["run", "faults.toml", "--set", "data.name=cifar10", "--set", "data.dir=binary"],
        ["no cifar10 in binary", "hpcps data cifar10"],
    ),
    "results in a file": (["run", "faults.toml", "--results", "binary"], ["cannot write to the results folder"]),
    "results below a file": (["run", "faults.toml", "--results", "binary/below"], ["cannot write to the results"]),
    "results nowhere": (["run", "faults.toml", "--results", "/proc/nowhere"], ["/proc/nowhere", "another results"]),
    "a blank": (
        ["run", "faults.toml", "--results", "with blank"],
        ["has a blank", "name a results folder without them (--results)\n"],
    ),
    "no hosts": (["run", "faults.toml", "--hostfile", "nothere"], ["there is no host file nothere"]),
    "an empty host file": (["run", "faults.toml", "--hostfile", "empty"], ["the host file empty is empty"]),
    "a folder of hosts": (
        ["run", "faults.toml", "--hostfile", "folder"],
        ["the host file folder: cannot be read (Is a directory)"],
    ),
    "binary hosts": (["run", "faults.toml", "--hostfile", "binary"], ["the host file binary: not UTF-8 text"]),
    "no mpirun": (["run", "faults.toml", "--mpirun", "./nothere"], ["nothere --version does not answer"]),
    "some mpirun": (["run", "faults.toml", "--mpirun", "/bin/true"], ["/bin/true is none of hydra"]),
    "a file as mpirun": (
        ["run", "faults.toml", "--mpirun", "./not executable"],
        ["not executable --version does not answer", "Permission denied"],
    ),
    "no walltime": (["run", "faults.toml", "--walltime", "soon"], ["'soon' is no time: give seconds, or HH:MM:SS"]),
    "a short walltime": (
        ["run", "faults.toml", "--walltime", "60"],
        ["leaves no time to train: a run stops checkpoint.margin = 120 s before its end"],
    ),
    "an experiment": (["status", "nothere"], ["no experiment 'nothere'"]),
    "no results": (["collect", "nothere"], ["no experiment 'nothere'"]),
    "no table": (["plot", "nothere.parquet"], ["no table nothere.parquet"]),
    "a command": (["frobnicate"], ["invalid choice: 'frobnicate'", "'run'"]),
    "an option": (["run", "faults.toml", "--frobnicate"], ["unrecognized arguments: --frobnicate"]),
}


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments(case: str, bad: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(bad)
    arguments, wanted = ARGUMENTS[case]
    assert_refused(arguments, wanted, capsys)
    assert not list(bad.rglob("launch"))


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(("part", "damage"), list(zip(IDX, ("missing", "truncated", "corrupt"), strict=False)))
def test_data(part: str, damage: str, bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bad / "mnist"
    data.mkdir()
    for name, shape in IDX.items():
        write_idx(data / name, shape)
    arguments = ["run", str(bad / "faults.toml"), "--results", str(bad / "results"), "--set", "data.name=mnist"]
    arguments += ["--set", f"data.dir={bad}"]
    assert main([*arguments, "--dry-run"]) == 0, "good as they are"
    shutil.rmtree(bad / "results")
    capsys.readouterr()

    file = data / part
    if damage == "missing":
        file.unlink()
    elif damage == "truncated":
        os.truncate(file, file.stat().st_size - 1)
    else:
        file.unlink()
        file = file.with_suffix(".gz")
        file.write_bytes(gzip.compress(bytes(1000), mtime=0)[:-4])
    assert_refused(arguments, [str(file), damage, f"hpcps data mnist --dir {bad}"], capsys)
    assert not list(bad.rglob("launch"))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-o size=8m", "has 8 MiB free, 64 MiB are needed: free disk space"),
        ("-o ro", "the file system is read-only: choose another results folder"),
    ],
)
def test_results_folder_on_a_disk(options: str, said: str, experiment: Path) -> None:
    disk = experiment.parent / "disk"
    disk.mkdir()
    mount = ("unshare", "-rm", "sh", "-c", f'mount -t tmpfs {options} none {disk} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted in a namespace here")
    refused = hpcps("run", experiment, "--results", disk, prefix=mount)
    assert_said(refused, said)


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("what", ["faults.toml", "results"])
def test_permission(what: str, experiment: Path) -> None:
    results = experiment.parent / "results"
    results.mkdir()
    (experiment.parent / what).chmod(0)
    unprivileged: tuple[str, ...] = ()
    if os.geteuid() == 0:
        # Root as anybody else.
        capabilities = "-dac_override,-dac_read_search"
        unprivileged = ("setpriv", f"--bounding-set={capabilities}", f"--inh-caps={capabilities}")
        if shutil.which("setpriv") is None:
            pytest.skip("root may read and write everything, and there is no setpriv here")
    refused = hpcps("run", experiment, "--results", results, prefix=unprivileged)
    said = "permission denied" if what == "results" else "Permission denied"
    results.chmod(0o755)
    assert_said(refused, said)


def assert_said(refused: subprocess.CompletedProcess[str], said: str) -> None:
    assert refused.returncode == 2, refused
    assert refused.stdout == ""
    assert refused.stderr.count("hpcps: ") == 1
    assert said in refused.stderr
    assert_quiet(refused.stderr)


def assert_refused(arguments: list[str], wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(arguments)
    except SystemExit as end:  # argparse
        status = end.code
    shown = capsys.readouterr()
    assert status == 2
    assert shown.out == ""
    assert_quiet(shown.err)
    assert [text for text in wanted if text not in shown.err] == [], shown.err
    assert shown.err.count(wanted[0]) == 1


def write_idx(path: Path, shape: tuple[int, ...]) -> None:
    """Write an idx file of zeros, as a hole."""
    header = bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    path.write_bytes(header)
    size = len(header)
    for n in shape[:1]:
        size += n * (shape[1] * shape[2] if len(shape) == 3 else 1)
    os.truncate(path, size)
