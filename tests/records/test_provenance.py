import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hpcps
from hpcps.records import provenance as room
from hpcps.records.provenance import (
    Code,
    environment,
    is_complete,
    kernels,
    of_all,
    provenance,
    source_state,
    summaries,
    summary,
    write_provenance,
)
from hpcps.records.run_directory import RunDirectory


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    (tmp_path / "hpcps").mkdir()
    (tmp_path / "hpcps" / "a.py").write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path, git


def test_a_clean_checkout(checkout):
    root, git = checkout
    (root / "ignored").write_text("x")
    (root / "results").mkdir()
    (root / "results" / "made.txt").write_text("a run made this")
    assert source_state(root / "hpcps") == Code(git("rev-parse", "HEAD").strip())


def test_changed_and_new_files_are_in_a_patch_that_applies(checkout, tmp_path_factory):
    root, git = checkout
    (root / "hpcps" / "a.py").write_text("x = 2\n")
    (root / "hpcps" / "näw.py").write_text("y = 3\n")
    (root / "big.bin").write_bytes(b"0" * 300_000)
    git("config", "diff.noprefix", "true")
    git("config", "color.ui", "always")
    code = source_state(root / "hpcps")
    assert code.commit == git("rev-parse", "HEAD").strip()
    assert "big.bin" in code.note
    other = tmp_path_factory.mktemp("other")
    subprocess.run(["git", "clone", "-q", str(root), str(other)], check=True, capture_output=True)
    subprocess.run(["git", "-C", str(other), "apply"], input=code.uncommitted.encode(), check=True)
    assert (other / "hpcps" / "a.py").read_text() == "x = 2\n"
    assert (other / "hpcps" / "näw.py").read_text() == "y = 3\n"
    assert not (other / "big.bin").exists()


def test_a_package_installed_inside_somebody_elses_checkout_has_no_commit(checkout):
    root, _ = checkout
    (root / "ignored").mkdir()
    (root / "ignored" / "hpcps.py").write_text("")
    code = source_state(root / "ignored")
    assert code.commit is None
    assert "not tracked" in code.note


def test_it_works_without_a_checkout_and_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    outside = source_state(tmp_path)
    assert outside.commit is None
    assert "not a git repository" in outside.note
    monkeypatch.setenv("PATH", str(tmp_path))
    without = source_state(tmp_path)
    assert without.commit is None
    assert "no git" in without.note
    assert room.gpus() == []


def test_the_environment_that_matters_and_no_secrets():
    found = environment(
        {
            "OMP_NUM_THREADS": "1", "MPIR_CVAR_X": "2", "PBS_JOBID": "3.pbs", "HOME": "/root", "SLURM_JWT": "s",
            "PBS_JOBCOOKIE": "s", "HPCPS_API_TOKEN": "s", "CUDA_VISIBLE_DEVICES": "0", "MPI_PASSWORD": "s",
        }
    )  # fmt: skip
    assert found == {"OMP_NUM_THREADS": "1", "MPIR_CVAR_X": "2", "PBS_JOBID": "3.pbs", "CUDA_VISIBLE_DEVICES": "0"}


def test_the_whole_of_it_is_json_and_says_what_it_must():
    facts = provenance(["hpcps", "run", "x.toml"], Code("c0ffee", "diff"))
    assert json.loads(json.dumps(facts)) == facts
    assert facts["command"] == ["hpcps", "run", "x.toml"]
    assert facts["git"] == {"commit": "c0ffee", "uncommitted": True, "note": ""}
    assert facts["hpcps"] == hpcps.__version__
    assert facts["packages"]["numpy"]
    assert facts["machine"]["cores"] == os.cpu_count()
    assert facts["started"].endswith("+00:00")


def test_what_is_published_names_versions_and_commit_but_no_paths(tmp_path):
    facts = provenance(["/home/me/bin/hpcps", "run"]) | {"seed": 3, "mpi": "MPICH Version: 5.0.2\nMPICH Device: ch4"}
    (tmp_path / "runs" / "abc").mkdir(parents=True)
    RunDirectory(tmp_path / "runs" / "abc").write_provenance(facts)
    write_provenance(summaries(tmp_path, ["abc", "never-started"]), tmp_path)
    published = json.loads((tmp_path / "provenance.json").read_text())
    assert published["abc"]["mpi"] == "MPICH Version: 5.0.2"
    assert published["abc"]["seed"] == 3
    assert published["abc"]["git"] == facts["git"]
    assert "numpy" in published["abc"]["packages"]
    assert "/home/me" not in (tmp_path / "provenance.json").read_text()
    assert "environment" not in published["abc"]


def test_a_provenance_is_complete_if_it_names_code_machine_and_packages():
    facts = provenance(["hpcps"])
    assert is_complete(facts)
    assert is_complete(summary(facts))
    assert is_complete(summary(facts) | {"git": {"commit": None, "note": "no git"}}), "an installed wheel has hashes"
    for missing in ("machine", "packages"):
        assert not is_complete(summary(facts) | {missing: None})
    assert not is_complete(summary(facts) | {"git": None, "installed": None})
    for nothing in (None, {}, summary({})):
        assert not is_complete(nothing)


@pytest.mark.usefixtures("starts_processes")
def test_the_kernels_of_the_loaded_libraries_are_named():
    torch = pytest.importorskip("torch")
    np.linalg.eigvalsh(np.eye(2))
    assert kernels()["torch"] == torch.backends.cpu.get_cpu_capability()
    asked = "import os, torch; from hpcps.records.provenance import kernels; print(kernels()['torch'])"
    least = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", asked], env=least, capture_output=True, text=True)
    assert done.stdout == "DEFAULT\n", done.stderr
    several = [{"torch": "AVX512", "openblas": "Haswell"}, {"torch": "AVX2"}, {"openblas": "Haswell"}]
    assert of_all(several) == {"openblas": "Haswell", "torch": "AVX2, AVX512"}
    assert summary({"kernels": of_all(several)})["kernels"] == of_all(several)


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


@pytest.mark.usefixtures("starts_processes")
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
