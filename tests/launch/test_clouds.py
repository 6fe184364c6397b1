"""The files of launcher/cloud, compared with the schemas of their packages: `make clouds`."""

import subprocess

import pytest
from environments import ROOT

pytestmark = pytest.mark.usefixtures("starts_processes")

PYTHON = ROOT / ".venv-clouds" / "bin" / "python"


@pytest.fixture(params=["parallelcluster", "skypilot"])
def check(request, tmp_path):
    """Return what compares a file of launcher/cloud, after a replacement, with the schema."""
    if not PYTHON.exists():
        pytest.skip("no .venv-clouds: make clouds")

    def check(old="", new=""):
        text = (ROOT / "launcher" / "cloud" / f"{request.param}.yaml").read_text()
        assert old in text
        (tmp_path / "file.yaml").write_text(text.replace(old, new, 1))
        command = [PYTHON, ROOT / "tests" / "launch" / "cloud_files.py", request.param, tmp_path / "file.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    check.kind = request.param
    return check


def test_they_have_the_form_that_their_package_reads(check):
    assert check() == "valid\n"


def test_a_mistake_is_found(check):
    known = {"parallelcluster": "MaxCount", "skypilot": "num_nodes"}[check.kind]
    assert "Count2" in check(known, "Count2")
