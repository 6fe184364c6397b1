"""The built wheel works without the clone, and so do packages with components that pip installs beside it."""

import json
import re
import shutil

import pytest
from fresh import ROOT, Fresh, copy_of_the_clone, source_distribution

from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import load_experiment

ONE = """
name = "installed"
topology = { workers = 1, validators = 0 }
model.name = "mlp"
data = { name = "digits", limit = 160, test_limit = 50 }
train = { epochs = 1, batch_size = 16 }
"""
BOTH = (
    ONE
    + """
[[sweep]]
"validation.rule.kind" = ["average", "first_update"]
"""
)
"""A quickstart-like file, with a rule of the clone and one of a package."""
SHARED = ("launcher", "experiments", "examples", "docs/experiment.schema.json")
PACKAGE = ROOT / "tests/installation/package"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return copy_of_the_clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture(scope="module")
def fresh(clone, tmp_path_factory):
    """An environment with two wheels: that of the source distribution of the clone, and that of a package of others."""
    archive = source_distribution(clone, tmp_path_factory.mktemp("dist"))
    environment = Fresh(tmp_path_factory.mktemp("fresh"))
    environment.install(archive, package("1.2", tmp_path_factory))
    return environment


def package(version, folders):
    copy = shutil.copytree(PACKAGE, folders.mktemp("package"), dirs_exist_ok=True)
    settings = copy / "setup.cfg"
    settings.write_text(settings.read_text().replace("version = 1.2", f"version = {version}"))
    return copy


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A folder with nothing of the clone; runs write their results there."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "one.toml").write_text(ONE)
    (folder / "both.toml").write_text(BOTH)
    return folder


@pytest.fixture(scope="module")
def runs(fresh, elsewhere):
    """The runs of the file over MPI, by rule."""
    fresh.run("hpcps", "run", "both.toml", cwd=elsewhere)
    found = [RunDirectory(path) for path in elsewhere.glob("results/installed/runs/*")]
    return {run.spec["run"]["validation"]["rule"]["kind"]: run for run in found}


def files(folder, *below):
    paths = [path for name in below for path in (folder / name, *(folder / name).rglob("*")) if path.is_file()]
    sources = [path for path in paths if path.suffix != ".pyc"]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode & 0o111) for path in sources}


@pytest.mark.usefixtures("starts_processes")
def test_it_has_every_file_of_the_package(fresh, clone):
    assert files(fresh.packages, "hpcps") == files(clone, "hpcps")


@pytest.mark.thorough
def test_the_scripts_the_experiments_and_the_examples_come_with_it(fresh, clone):
    assert files(fresh.folder / "share/hpcps", *SHARED) == files(clone, *SHARED)


@pytest.mark.thorough
def test_a_run_over_mpi_is_complete(runs):
    assert sorted(runs) == ["average", "first_update"]
    for run in runs.values():
        assert run.done
        assert not run.damage()
    provenance = json.loads((runs["average"].path / "provenance.json").read_text())
    assert provenance["git"]["commit"] is None, "what ran is the wheel, which belongs to no commit"


@pytest.mark.usefixtures("starts_processes")
def test_plugin_files_work_with_it(fresh, elsewhere):
    folder = shutil.copytree(ROOT / "examples/plugins", elsewhere / "copied")
    configgen = fresh.folder / "share/hpcps/launcher/configgen.py"
    plugin = ("--set", 'plugins=["my_launcher.py"]', "--dialect", "my_launcher", "--all", "-o", "conf")
    shutil.copy(elsewhere / "one.toml", folder)
    said = fresh.run("python", configgen, folder / "one.toml", *plugin, cwd=elsewhere)
    assert "myrun --app" in said
    assert str(fresh.bin / "python") in (elsewhere / "conf").read_text()
    transport = ("--set", 'plugins=["my_transport.py"]', "--set", "transport.kind=my_transport")
    assert "no mistakes" in fresh.run("hpcps", "check", folder / "one.toml", *transport, cwd=elsewhere)


@pytest.mark.thorough
def test_its_job_scripts_find_it(fresh, elsewhere):
    home = shutil.copytree(fresh.folder / "share/hpcps", elsewhere / "job")
    (home / "hosts").write_text("".join(f"node{number}\n" for number in range(18)))
    variables = {"PBS_JOBID": "1.here", "PBS_NODEFILE": home / "hosts", "PBS_O_WORKDIR": home}
    options = "ARGS=--dry-run --set data.name=synthetic --set data.augment=false"
    words = [*(f"{name}={value}" for name, value in variables.items()), options]
    said = fresh.run("env", *words, home / "launcher/pbs/sync_single_validator.sh", cwd=elsewhere)
    assert "ended with status 0" in said
    (conf,) = home.glob("results/fig3_sync_single_validator/launch/**/conf")
    assert f"{fresh.bin}/python" in conf.read_text()


@pytest.mark.usefixtures("starts_processes")
def test_a_package_is_listed_and_recorded(fresh, runs):
    listed = " ".join(fresh.run("hpcps", "components", "rules").split())
    assert "The update of the first worker that sends one. (package hpcps-firsts 1.2)" in listed
    provenance = json.loads((runs["first_update"].path / "provenance.json").read_text())
    rule = {"name": "first_update", "origin": "package hpcps-firsts 1.2"}
    assert provenance["components"]["validation.rule"] == rule
    assert provenance["packages"]["hpcps-firsts"] == "1.2"


@pytest.mark.usefixtures("starts_processes")
def test_its_version_is_in_the_id_of_runs_that_use_it(fresh, elsewhere, runs, tmp_path_factory):
    (here,) = load_experiment(elsewhere / "one.toml", ["validation.rule.kind=average"]).points
    assert here.run_id == runs["average"].path.name, "without the package, the id is the same"
    other = Fresh(tmp_path_factory.mktemp("other"))
    shutil.copytree(fresh.packages / "hpcps", other.packages / "hpcps")
    other.install(package("1.3", tmp_path_factory))
    said = other.run("python", "-m", "hpcps", "check", elsewhere / "both.toml")
    ids = {rule: run_id for run_id, rule in re.findall(r"^ +\d+  (\w+)  (\w+)$", said, re.MULTILINE)}
    assert ids["average"] == runs["average"].path.name
    assert ids["first_update"] != runs["first_update"].path.name


@pytest.mark.usefixtures("starts_processes")
def test_a_broken_entry_point_is_an_error_for_who_uses_it(fresh, elsewhere):
    what = "broken_rule = hpcps_firsts_missing:Rule of the package hpcps-firsts cannot be imported: ModuleNotFoundError"
    assert what in " ".join(fresh.run("hpcps", "components", "rules").split())
    rule = "validation.rule.kind=broken_rule"
    said = fresh.run("hpcps", "check", "one.toml", "--set", rule, cwd=elsewhere, expect=2)
    assert said.startswith("hpcps: one.toml: 1 mistake\n")
    assert what in said
