"""The scripts of `hpcps completion` complete what is typed in a shell."""

import os
import pty
import re
import shutil
import subprocess

import pytest
from python_libraries import LIBRARIES

from hpcps.cli.main import main

TYPED = {
    "hpcps compl\tba\t": "completion bash",
    "hpcps components datas\tsyn\t": "components datasets synthetic",
    "hpcps components rules trimmed\t--fi\texp\tmi\t": "components rules trimmed_mean --file experiments/mine.toml",
    "hpcps run experiments/m\t--dry\t": "run experiments/mine.toml --dry-run",
    "hpcps run experiments/m\t--results pl\t": "run experiments/mine.toml --results played/",
    "hpcps collect mi\t": "collect mine",
    "hpcps collect sec\t": "collect second",
    "hpcps status 01\t": "status 0123456789",
    "hpcps plot timeline 01\t": "plot timeline 0123456789",
    "hpcps data fash\t--che\t": "data fashion_mnist --check",
}


@pytest.fixture
def folder(tmp_path, capsys):
    """A folder with an experiment file, and the results of another experiment."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments/mine.toml").touch()
    (tmp_path / "played/second/runs/0123456789").mkdir(parents=True)
    return tmp_path


def script(shell, capsys):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_what_is_typed(folder, capsys):
    (folder / "script").write_text(script("bash", capsys))
    # The words that the command gets are what bash has completed.
    lines = ['hpcps() { echo "<$*>"; }', *TYPED, "exit"]
    controller, terminal = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", "script", "-i"],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, start_new_session=True,
        env={"PATH": os.environ["PATH"], "HPCPS_RESULTS": "played", "TERM": "dumb", **LIBRARIES},
    )  # fmt: skip
    os.close(terminal)
    os.write(controller, "".join(f"{line}\n" for line in lines).encode())
    shown = read(controller)
    assert shell.wait(60) == 0
    assert re.findall(r"^<(.*)>\r$", shown, re.MULTILINE) == list(TYPED.values()), shown


def read(terminal):
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the shell has ended
            return shown.decode()


@pytest.mark.parametrize(("shell", "check"), [("zsh", "-n"), ("fish", "--no-execute")])
def test_other_shells_accept_their_script(shell, check, folder, capsys):
    text = script(shell, capsys)
    assert text.count("_hpcps_experiments") > 1
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "script").write_text(text)
    subprocess.run([shell, check, folder / "script"], check=True)
