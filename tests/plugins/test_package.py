"""Components of an installed package are listed, usable, and known by its version; a broken one only harms its user."""

import configparser
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typed import hpcps, models

PACKAGE = Path(__file__).with_name("package")
FILE = """
name = "packaged"
transport.kind = "inproc"
topology.workers = 2
model.name = "mlp"
data = { name = "digits", limit = 160, test_limit = 50 }
train = { epochs = 1, batch_size = 16 }
"""


@pytest.fixture
def site(tmp_path):
    """Install the package into a folder, as pip does with wheels."""
    settings = configparser.ConfigParser()
    settings.read(PACKAGE / "setup.cfg")
    site = tmp_path / "site"
    install(site, settings["metadata"]["version"], settings["options.entry_points"])
    return site


def install(site, version, entry_points):
    shutil.rmtree(site, ignore_errors=True)
    folder = site / f"hpcps_firsts-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hpcps-firsts\nVersion: {version}\n")
    groups = "".join(f"[{group}]\n{lines.strip()}\n" for group, lines in entry_points.items())
    (folder / "entry_points.txt").write_text(groups)
    shutil.copy(PACKAGE / "hpcps_firsts.py", site)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(FILE)
    return path


def run_id(file, rule, site):
    said = hpcps("check", file, "--set", f"validation.rule.kind={rule}", path=site)
    return said.rstrip().rpartition("\n")[2].split()[1]


def test_its_rule_is_listed_and_runs(site, file, tmp_path):
    listed = hpcps("components", "rules", path=[site])
    assert "The update of the first worker that sends one. (package hpcps-firsts 1.2)" in " ".join(listed.split())
    assert "rule first_update (package hpcps-firsts 1.2)" in hpcps("components", "rules", "first_update", path=[site])
    assert "first_update" not in hpcps("components", "rules")
    assert '"first_update"' in hpcps("check", "--schema", path=[site])
    for transport in ("inproc", "mpi"):
        sets = ("--set", "validation.rule.kind=first_update", "--set", f"transport.kind={transport}")
        hpcps("run", file, *sets, "--results", tmp_path / transport, path=[site])
    (in_process,), (over_mpi,) = (models(tmp_path / transport).values() for transport in ("inproc", "mpi"))
    np.testing.assert_array_equal(in_process, over_mpi)
    (run,) = (tmp_path / "mpi").glob("packaged/runs/*")
    provenance = json.loads((run / "provenance.json").read_text())
    rule = {"name": "first_update", "origin": "package hpcps-firsts 1.2"}
    assert provenance["components"]["validation.rule"] == rule
    assert provenance["packages"]["hpcps-firsts"] == "1.2"


def test_its_version_is_in_the_id_of_runs_that_use_it(site, file):
    ids = {rule: run_id(file, rule, [site]) for rule in ("average", "first_update")}
    assert ids["average"] == run_id(file, "average", [])
    install(site, "1.3", {"hpcps.rules": "first_update = hpcps_firsts:FirstUpdate"})
    assert ids["average"] == run_id(file, "average", [site])
    assert ids["first_update"] != run_id(file, "first_update", [site])


def test_a_broken_entry_point_is_an_error_for_who_uses_it(site, file, tmp_path):
    what = "broken_rule = hpcps_firsts_missing:Rule of the package hpcps-firsts cannot be imported: ModuleNotFoundError"
    assert what in " ".join(hpcps("components", "rules", path=[site]).split())
    said = hpcps("check", file, "--set", "validation.rule.kind=broken_rule", path=[site], expect=2)
    assert said.startswith(f"hpcps: {file}: 1 mistake\n")
    assert what in said
    hpcps("run", file, "--results", tmp_path / "results", path=[site])
    for command in ("status", "collect", "plot"):
        hpcps(command, "packaged", "--results", tmp_path / "results", path=[site], cwd=tmp_path)
