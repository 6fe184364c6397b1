"""What provenance says of installed packages, which have no commit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcps
from hpcps.records.provenance import provenance, summary

SHOW = "import json; from hpcps.records.provenance import provenance; print(json.dumps(provenance([])))"


@pytest.fixture
def site(tmp_path):
    """A folder with hpcps as a wheel installs it, and a package that brings a rule."""
    site = tmp_path / "site"
    package = Path(hpcps.__file__).parent
    shutil.copytree(package, site / "hpcps", ignore=shutil.ignore_patterns("__pycache__"))
    info = site / "more_rules-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: more-rules\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[hpcps.rules]\nmine = more_rules.mine:Mine\n")
    (site / "more_rules").mkdir()
    (site / "more_rules" / "__init__.py").write_text("raise RuntimeError('nobody has to import it')\n")
    (site / "more_rules" / "mine.py").write_text("x = 1\n")
    return site


def shown(site):
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, cwd=site, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_installed_hpcps_and_its_plugin_packages_have_a_version_and_a_hash(site):
    facts = shown(site)
    assert facts["git"]["commit"] is None
    assert list(facts["installed"]) == ["hpcps", "more-rules"]
    assert [each["version"] for each in facts["installed"].values()] == [hpcps.__version__, "1.2"]
    # The same files elsewhere are the same code.
    assert facts["installed"]["hpcps"] == provenance([])["installed"]["hpcps"]
    assert summary(facts)["installed"] == facts["installed"]

    (site / "more_rules" / "mine.py").write_text("x = 2\n")
    changed = shown(site)["installed"]
    assert changed["hpcps"] == facts["installed"]["hpcps"]
    assert changed["more-rules"]["version"] == "1.2"
    assert changed["more-rules"]["sha256"] != facts["installed"]["more-rules"]["sha256"]

    (site / "hpcps" / "rules" / "new.py").write_text("")
    assert shown(site)["installed"]["hpcps"] != facts["installed"]["hpcps"]
