"""setup.sh refuses early what cannot work, and installs the build of torch that fits the machine."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import venv
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fresh import ROOT

from hpcps.launch.launchers import job

WANTED = re.search(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
# Builds a package that needs nothing but torch, so that a test needs no network.
BACKEND = """
import zipfile
def build_editable(folder, settings=None, metadata=None):
    with zipfile.ZipFile(folder + "/hpcps-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("hpcps-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: hpcps\\nVersion: 1\\n"
                       "Provides-Extra: torch\\nRequires-Dist: torch; extra == 'torch'\\n")
        wheel.writestr("hpcps-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("hpcps-1.dist-info/RECORD", "")
    return "hpcps-1-py3-none-any.whl"
"""
# `python -m venv --clear FOLDER` copies an environment, because pip takes seconds to install itself; `make test` has
# made the environment of the tests with the real one.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then exec cp -a {environment} "$4"; fi
exec {python} "$@"
"""
BUILD_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def offer_torch(folder, version, build):
    """Write a small wheel into a folder; `torch.build` tells the builds apart."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        information = f"torch-{version}.dist-info"
        wheel.writestr("torch.py", f"build = {build!r}\n")
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


class Stranger:
    """A clone on a machine without a network, whose indexes are on the loopback interface."""

    def __init__(self, folder, address, environment):
        self.address, self.clone, self.programs = address, folder / "clone", folder / "programs"
        self.clone.mkdir()
        self.programs.mkdir()
        shutil.copy2(ROOT / "setup.sh", self.clone)
        (self.clone / "constraints.txt").write_text(f"torch=={WANTED}\n")
        (self.clone / "backend.py").write_text(BACKEND)
        (self.clone / "pyproject.toml").write_text(BUILD_SYSTEM)
        self.driver(loaded=False)
        self.program("python", PYTHON.format(environment=environment, python=sys.executable))
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        self.variables = {
            **kept,
            "HOME": str(folder),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PYTHON": str(self.programs / "python"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{address}/pypi",
            "PIP_NO_CACHE_DIR": "1",
            "HTTPS_PROXY": "http://127.0.0.1:9",
        }

    def driver(self, *, loaded):
        """Put a program on PATH that ends like NVIDIA's with or without a loaded driver."""
        self.program("nvidia-smi", f"#!/bin/sh\nexit {0 if loaded else 9}\n")

    def program(self, name, text):
        """Put a script on PATH."""
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def sets_up(self, expect=0, **variables):
        """Run setup.sh; return its output and the build of torch that is then installed."""
        done = subprocess.run(
            ["./setup.sh", "new", ".venv", "torch"],
            cwd=self.clone, env={**self.variables, **variables},
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert done.returncode == expect, said
        if expect:
            return said, None
        build = subprocess.run(
            [self.clone / ".venv/bin/python", "-c", "import torch; print(torch.build)"],
            env=self.variables, capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        return said, build


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Indexes served from a folder: that of PyPI, and one with the CPU build."""
    served = tmp_path_factory.mktemp("indexes")
    offer_torch(served / "pypi/torch", WANTED, "PyPI's")
    offer_torch(served / "cpu/torch", f"{WANTED}+cpu", "CPU")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=served)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A new virtual environment."""
    folder = tmp_path_factory.mktemp("environment") / ".venv"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def stranger(tmp_path, address, environment):
    return Stranger(tmp_path, address, environment)


@pytest.mark.usefixtures("starts_processes")
def test_the_cpu_build_of_an_index(stranger, address):
    said, build = stranger.sets_up(TORCH_CPU_INDEX=f"{address}/cpu")
    assert build == "CPU"
    assert f"torch {WANTED} from {address}/cpu\n  downloading torch-{WANTED}" in said


@pytest.mark.usefixtures("starts_processes")
def test_an_index_that_does_not_answer(stranger):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/cpu"
        began = time.monotonic()
        said, build = stranger.sets_up(TORCH_CPU_INDEX=index)
    assert build == "PyPI's"
    assert f"{index} does not answer" in said
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("starts_processes")
def test_pytorchs_index_when_it_cannot_be_reached(stranger):
    said, build = stranger.sets_up()
    assert build == "PyPI's"
    assert "https://download.pytorch.org/whl/cpu does not answer" in said


@pytest.mark.usefixtures("starts_processes")
def test_a_machine_with_a_driver(stranger):
    stranger.driver(loaded=True)
    said, build = stranger.sets_up()
    assert build == "PyPI's"
    assert "because this machine has an NVIDIA driver" in said


@pytest.mark.usefixtures("starts_processes")
def test_a_build_of_pips_configuration(stranger, tmp_path):
    offer_torch(tmp_path / "wheels", f"{WANTED}+mine", "my")
    said, build = stranger.sets_up(PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert build == "my"
    assert f"torch {WANTED}+mine, from a source that the configuration of pip names" in said


@pytest.mark.thorough
def test_pip_gives_the_reason_of_a_failure(stranger):
    (stranger.clone / "constraints.txt").write_text("torch==99\n")
    said, _ = stranger.sets_up(expect=1, TORCH_CPU_INDEX="")
    assert "The user requested (constraint) torch==99" in said
    assert "setup.sh: pip failed" in said


@pytest.mark.thorough
def test_a_path_with_a_blank_is_refused_first(stranger, tmp_path):
    stranger.clone = stranger.clone.rename(tmp_path / "my clone")
    said, _ = stranger.sets_up(expect=1)
    assert f"has a blank or a special character: '{tmp_path}/my clone'" in said
    assert "Move the folder" in said
    assert not (stranger.clone / ".venv").exists()


def test_it_refuses_the_paths_that_launchers_refuse():
    assert job._PLAIN.pattern in (ROOT / "setup.sh").read_text()


@pytest.mark.thorough
def test_a_python_that_is_not_there(stranger):
    said, _ = stranger.sets_up(expect=1, PYTHON="python3.99")
    assert said == (
        "setup.sh: there is no python3.99: install Python 3.11 or later, or name it: make PYTHON=/path/to/python3\n"
    )


ROOT = Path(__file__).parents[2]


def test_stages_get_few_variables_and_few_open_files(tmp_path):
    kept = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(tmp_path),
        "CI": "1",
        "HPCPS_RESULTS": 'it\'s "here" and $HOME',
        "PIP_CERT": "/a b.pem",
        "UV_INDEX": "",
        "https_proxy": "http://[::1]:80",
        "SSL_CERT_FILE": "two\nCI=lines",
    }
    others = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "LANG": "C", "BASH_FUNC_x%%": "() { echo; }"}
    # What `make test-all` would give to the make of the stages.
    command = ["make", "test-all", "MAKE=sh -c 'ulimit -Sn; env -0'", "PROCESSES=7"]
    done = subprocess.run(command, cwd=ROOT, env=kept | others, capture_output=True, text=True, check=True)
    limit, _, variables = done.stdout.partition("\n")
    assert limit == "512"
    given = dict(entry.split("=", 1) for entry in variables.split("\0") if entry)
    assert "PROCESSES=7" in given.pop("MAKEFLAGS")
    assert set(given) - set(kept) <= {"MAKELEVEL", "PWD", "PIP_DISABLE_PIP_VERSION_CHECK"}
    assert {name: given[name] for name in kept} == kept
