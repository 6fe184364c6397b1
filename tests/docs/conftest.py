"""The site, built once for all tests of this folder."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build the site as `make docs` does, in strict mode: a broken link, anchor or reference is an error."""
    if importlib.util.find_spec("material") is None or importlib.util.find_spec("mkdocstrings") is None:
        missing = "mkdocs-material or mkdocstrings is missing: pip install 'hpcps[docs]'"
        pytest.fail(missing) if "CI" in os.environ else pytest.skip(missing)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder
