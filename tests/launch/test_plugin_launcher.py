"""A launcher that hpcps does not know, from a plugin file or a package: `examples/plugins/my_launcher.py`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpcps import registry
from hpcps.cli import configgen
from hpcps.cli.main import main
from hpcps.launch.detect import detect_mpi
from hpcps.launch.plan import Plan
from hpcps.spec.load import load_experiment

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugins" / "my_launcher.py"
EXPERIMENT = f"""
name = "small"
plugins = ["{EXAMPLE}"]
topology.workers = 2
transport.kind = "pslite"
model.name = "mlp"
data = {{ name = "digits", limit = 320, test_limit = 32 }}
train = {{ epochs = 1, batch_size = 16 }}
"""
MYRUN = """#!/bin/bash
if [ "$1" = --version ]; then echo "myrun 1.0, by somebody else than HYDRA build details: Version: 5"; exit; fi
rank=0
while read -r _ count _ _ program; do
  for _ in $(seq "$count"); do MYRUN_RANK=$rank $program & rank=$((rank + 1)); done
done <"${@: -1}"
while [ "$rank" -gt 0 ]; do wait -n || exit; rank=$((rank - 1)); done
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(EXPERIMENT)
    Path("myrun").write_text(MYRUN)
    Path("myrun").chmod(0o755)
    with registry.using(registry.installed()):
        yield tmp_path


def test_it_is_listed_and_has_a_page(capsys):
    assert main(["components", "launchers", "--file", "small.toml"]) == 0
    assert "my_launcher          The launcher of our cluster" in capsys.readouterr().out
    assert main(["components", "launchers", "my_launcher", "--file", "small.toml"]) == 0
    page = capsys.readouterr().out.splitlines()
    assert page[0] == "launcher my_launcher (plugin my_launcher.py)"
    assert "executable: myrun" in page
    assert "rank variables: MYRUN_RANK" in page


def test_it_is_recognised_before_one_that_is_built_in(folder):
    assert detect_mpi(folder / "myrun").launcher.name == "hydra"
    load_experiment("small.toml")
    assert detect_mpi(folder / "myrun").launcher.name == "my_launcher"


@pytest.mark.usefixtures("starts_processes")
def test_its_file_is_written_anywhere(capsys, folder):
    Path("hosts").write_text("a slots=3\nb\n")
    arguments = ["small.toml", "--hostfile", "hosts", "-o", "conf", "--set", "transport.kind=mpi"]
    assert configgen.main([*arguments, "--dialect", "my_launcher"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"myrun --app {folder}/conf"
    heads = [line.split()[:4] for line in Path("conf").read_text().splitlines()]
    assert [" ".join(head) for head in heads] == ["-np 1 -on a"] * 3 + ["-np 1 -on b"]
    assert Plan.read(Path("conf.plan.json")).rank_variables == ("MYRUN_RANK",)
    assert configgen.main([*arguments, "--dialect", "your_launcher"]) == 2
    assert "unknown dialect 'your_launcher': choose one of hydra, intel" in capsys.readouterr().err


@pytest.mark.usefixtures("starts_processes")
def test_its_variable_tells_the_ranks_their_places(folder):
    """They are ps-lite nodes, which have nothing else to go by; what another launcher told us does not count."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PMI_RANK": "0"}
    command = [sys.executable, "-m", "hpcps", "run", "small.toml", "--mpirun", "./myrun", "--results", "results"]
    command += ["--set", "topology={workers=1, validators=0}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "results" / "small" / "runs").iterdir()
    assert (run / "DONE").exists()
    names = ["scheduler-0", "server-0", "worker-0"]
    assert sorted(json.loads((run / "provenance.json").read_text())["nodes"]) == names


def test_its_keys_are_refused_as_nothing_sets_them(capsys, folder):
    text = EXAMPLE.read_text().replace('    name: Literal["my', '    fast: bool = False\n    name: Literal["my')
    Path("mine.py").write_text(text)
    assert main(["components", "launchers", "--file", "small.toml"]) == 0
    Path("small.toml").write_text(EXPERIMENT.replace(str(EXAMPLE), "mine.py"))
    assert main(["components", "launchers", "--file", "small.toml"]) == 2
    assert "MyLauncher is not a usable launcher: it has keys (fast)" in capsys.readouterr().err


@pytest.mark.usefixtures("starts_processes")
def test_a_package_may_bring_it(folder):
    """Its entry point makes it known to every experiment, without `plugins`."""
    site = folder / "site"
    info = site / "cluster_launchers-1.2.dist-info"
    info.mkdir(parents=True)
    shutil.copy(EXAMPLE, site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cluster-launchers\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[hpcps.launchers]\nmy_launcher = my_launcher:MyLauncher\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{site}"}
    detect = "from pathlib import Path; from hpcps.launch.detect import detect_mpi; print(detect_mpi(Path('./myrun')))"
    for command in (["-m", "hpcps", "components", "launchers"], ["-c", detect]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "my_launcher" in done.stdout
