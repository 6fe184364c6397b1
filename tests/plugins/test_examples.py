"""The plugins in `examples/plugins` do what they say, as typed, and leave behind what they were."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
from typed import ROOT, hpcps, models

from hpcps.records.collect import collect
from hpcps.records.run_directory import RunDirectory
from hpcps.registry import activate, installed
from hpcps.registry.plugins import load
from hpcps.spec.load import load_experiment

EXAMPLES = ROOT / "examples/plugins"


@pytest.fixture
def folder(tmp_path):
    """A copy of the examples, with fewer samples and epochs."""
    copy = shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "experiment.toml").read_text()
    for there, instead in (
        ('name = "digits"\n', 'name = "digits"\nlimit = 160\ntest_limit = 100\n'),
        ("epochs = 3\n", "epochs = 1\n"),
        ("workers = 4\n", "workers = 2\nvalidators = 0\n"),
        ("rate = 0.2\n", "rate = 0.5\n"),
    ):
        assert text.count(there) == 1
        text = text.replace(there, instead)
    (copy / "experiment.toml").write_text(text)
    return copy


def component(file):
    (entry,) = load((EXAMPLES / file).read_text(), EXAMPLES / file).entries
    return entry.component


EXTENSIONS = ("my_rule.py", "my_async_rule.py", "my_attack.py", "my_omniscient_attack.py", "my_preaggregator.py")
EXTENSIONS += ("my_policy.py", "my_optimizer.py")


@pytest.mark.parametrize("file", EXTENSIONS)
def test_it_is_about_ten_lines(file):
    lines = (EXAMPLES / file).read_text().partition("\nclass ")[2].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 11


def test_they_compute_what_they_say():
    updates = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert component("my_rule.py")(radius=1)(updates) == pytest.approx(np.array([0.3, 0.4]))
    assert component("my_attack.py")(by=0.5)(updates[0]).tolist() == [3.5, 4.5]
    assert component("my_omniscient_attack.py")(by=2)(np.array([[3.0, 4.0], [1.0, 4.0]]), f=3).tolist() == [4, 4]


@pytest.mark.thorough
def test_a_policy_runs_from_a_file_and_its_mistakes_name_it(folder, tmp_path):
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace('"my_attack.py"', '"my_attack.py", "my_policy.py"'))
    simulation = "simulation={kind='modelled',step={kind='constant',seconds=0.125}}"
    changed = ("--set", "train.local_steps={kind='same_time',seconds=0.5}", "--set", simulation, "--only", "0")
    changed += ("--set", "transport.kind=inproc", "--results", tmp_path)
    hpcps("run", file, *changed)
    (run,) = tmp_path.glob("*/runs/*")
    assert json.loads((run / "spec.json").read_text())["components"]["train.local_steps"]["name"] == "same_time"
    lines = [json.loads(line) for line in (run / "records/worker-1.jsonl").read_text().splitlines()]
    assert {line["local_steps"] for line in lines if line["event"] == "round"} == {4}
    policy = folder / "my_policy.py"
    policy.write_text(policy.read_text().replace("return 1 if", "return 1.5 if"))
    said = hpcps("run", file, *changed, expect=1)
    assert "policy same_time (plugin my_policy.py, line 17): its further_steps() returned a float" in said


def test_a_server_optimizer_runs_from_a_file_and_its_mistakes_name_it(folder, tmp_path):
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace('"my_attack.py"', '"my_attack.py", "my_optimizer.py"'))
    changed = ("--set", "server.optimizer={kind='signed',lr=0.25}", "--set", "transport.kind=inproc", "--only", "0")
    hpcps("run", file, *changed, "--results", tmp_path)
    (run,) = tmp_path.glob("*/runs/*")
    lines = [json.loads(line) for line in (run / "records/server-0.jsonl").read_text().splitlines()]
    moved = {line["change_norm"] for line in lines if line["event"] == "round"}
    assert 0 < max(moved) <= 0.25 * np.load(run / "final/server-0.npy").size ** 0.5 * 1.001
    optimizer = folder / "my_optimizer.py"
    optimizer.write_text(optimizer.read_text().replace("return self.lr", "return 1 / 0 * self.lr"))
    said = hpcps("check", file, *changed[:2], expect=2)
    assert "server optimizer signed (plugin my_optimizer.py, line 23): its step() failed: ZeroDivisionError" in said


@pytest.mark.thorough
def test_a_compressor_runs_from_a_file_and_its_mistakes_name_it(folder, tmp_path):
    file = folder / "experiment.toml"
    file.write_text(file.read_text().replace('"my_attack.py"', '"my_attack.py", "my_compressor.py"'))
    changed = ("--set", "communication.compression={kind='fixed',step=0.0001}", "--set", "transport.kind=inproc")
    hpcps("run", file, *changed, "--only", "0", "--results", tmp_path)
    (run,) = tmp_path.glob("*/runs/*")
    steps = component("my_compressor.py")(step=0.5).decode(np.array([3, -4], np.int16).tobytes(), 2)
    assert steps.tolist() == [1.5, -2.0]
    lines = [json.loads(line) for line in (run / "records/server-0.jsonl").read_text().splitlines()]
    assert {line["malformed"] for line in lines if line["event"] == "round"} == {0}
    compressor = folder / "my_compressor.py"
    text = compressor.read_text()
    for wrong, what in (
        ("return len(code) - 2", "returned a code that its read() refuses"),
        ("values[:] = 0; return len(code)", "returned after it had changed its values, which it must not change"),
    ):
        compressor.write_text(text.replace("return len(code)", wrong))
        said = hpcps("check", file, *changed, expect=2)
        assert f"compressor fixed (plugin my_compressor.py, line 22): its write() {what}" in said


@pytest.mark.parametrize(
    ("files", "tables"),
    [
        ('"my_async_rule.py"', 'mode = "async"\n[validation]\nrule = { kind = "clipped", radius = 0.5 }\n'),
        (
            '"my_preaggregator.py", "my_omniscient_attack.py"',
            '[attack]\nkind = "beyond"\nrate = 0.5\n'
            '[validation]\nrule = { kind = "median", before = [{ kind = "direction" }] }\n',
        ),
    ],
)
def test_other_rules_and_attacks_run_from_a_file(folder, tmp_path, files, tables):
    file = folder / "experiment.toml"
    text = file.read_text().partition("[attack]")[0].replace('"my_rule.py", "my_attack.py"', files)
    file.write_text(text + tables)
    hpcps("run", file, "--set", "transport.kind=inproc", "--results", tmp_path)
    assert {path.name for path in tmp_path.glob("*/runs/*/plugins/*")} == set(files.replace('"', "").split(", "))


def test_every_example_is_tested():
    folders = ("plugins", "launch", "transport")
    texts = "".join(path.read_text() for name in folders for path in (ROOT / "tests" / name).glob("test_*.py"))
    assert [path.name for path in EXAMPLES.glob("*.py") if path.name not in texts] == []


@pytest.mark.usefixtures("starts_processes")
def test_a_run_over_mpi_and_one_in_process_agree(folder, tmp_path):
    file, results = folder / "experiment.toml", tmp_path / "mpi"
    assert "2 points, no mistakes" in hpcps("check", file)
    hpcps("run", file, "--results", results)
    hpcps("run", file, "--set", "transport.kind=inproc", "--results", tmp_path / "inproc")
    over_mpi, in_process = models(results), models(tmp_path / "inproc")
    assert sorted(over_mpi) == sorted(in_process) == ["average", "clipped_mean"]
    for label, values in over_mpi.items():
        np.testing.assert_array_equal(values, in_process[label], err_msg=label)

    texts = {name: (folder / name).read_text() for name in ("my_rule.py", "my_attack.py")}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    for where in (results, tmp_path / "inproc"):
        for run in where.glob("*/runs/*"):
            used = ["my_attack.py"]
            used += ["my_rule.py"] * (RunDirectory(run).spec["label"] == "clipped_mean")
            assert {path.name: path.read_text() for path in run.glob("plugins/*")} == {n: texts[n] for n in used}
            spec = json.loads((run / "spec.json").read_text())
            provenance = json.loads((run / "provenance.json").read_text())
            assert (
                spec["plugins"] == provenance["plugins"] == [{"file": n, "sha256": sums[n]} for n in sorted(used)[::-1]]
            )
            assert spec["components"]["attack"]["needs"] == ["own"]
            assert provenance["components"]["attack"] == {"name": "shift", "origin": "plugin my_attack.py"}
            assert provenance["components"]["model"] == {"name": "mlp", "origin": "built in"}

    # To read what is there, no plugin is executed.
    (folder / "my_rule.py").write_text("open('executed', 'w')\nraise RuntimeError('executed')\n")
    (folder / "my_attack.py").unlink()
    said("collect", results)
    published = json.loads((results / "my_experiment/provenance.json").read_text())
    assert all(each["plugins"] for each in published.values())
    said("plot", results)
    for name in ("my_experiment", str(file)):
        assert "clipped_mean" in said("status", results, name)
    assert not list(tmp_path.rglob("executed"))


def test_records_name_an_attack_and_a_stage_of_ones_own_as_the_check_does(folder, tmp_path):
    """Though who reads records does not load the plugins, and so does not know their defaults."""
    file = folder / "experiment.toml"
    tables = """
"validation.rule" = [{ kind = "average" }, { kind = "average", before = [{ kind = "tame" }] },
                     { kind = "average", before = [{ kind = "tame", radius = 4.0 }] }]
[[sweep]]
attack = [{ kind = "none" }, { kind = "shift", rate = 0.2 }, { kind = "shift", rate = 0.2, by = 0.5 }]
"""
    text, _, _ = file.read_text().partition('"validation.rule"')
    stage = (folder / "my_preaggregator.py").read_text().replace("direction", "tame")
    keys = "".join(f'    {key}: float = Field(2.0, description="mine")\n' for key in ("radius", "limit"))
    stage = stage.replace('"tame"\n', f'"tame"\n{keys}').replace(
        "import numpy", "from pydantic import Field\n\nimport numpy"
    )
    (folder / "tame.py").write_text(stage)
    file.write_text(text.replace('"my_rule.py"', '"tame.py"') + tables)
    points = load_experiment(file).points
    for point in points:
        RunDirectory(tmp_path / "mine/runs" / point.run_id).create(point.spec)
        (tmp_path / "mine/runs" / point.run_id / "records/worker-0.jsonl").write_text('{"event": "start"}\n')
    activate(installed())
    rows = collect(tmp_path / "mine").table.drop_duplicates("run_id")
    assert [f"{rule} · {attack}" for rule, attack in zip(rows["rule"], rows["attack"], strict=True)] == [
        point.label for point in points
    ]
    assert points[4].label == "average before [tame] · shift by 0.1"


def said(what, results, name="my_experiment"):
    """Return what a command says of the results, from a folder where the experiment file is at hand."""
    folder = results.parent
    (folder / "experiments").mkdir(exist_ok=True)
    shutil.copy(folder / "examples/experiment.toml", folder / "experiments/my_experiment.toml")
    shutil.copy(folder / "examples/my_rule.py", folder / "experiments/my_rule.py")
    return re.sub(r" *[0-9.]+ \w+ ago *$", "", hpcps(what, name, "--results", results, cwd=folder), flags=re.MULTILINE)


def test_they_are_listed_and_in_the_schema(folder):
    file = folder / "experiment.toml"
    page = hpcps("components", "rules", "clipped_mean", "--file", file)
    assert page.startswith("rule clipped_mean (plugin my_rule.py)\n\nThe mean of the updates, each scaled down")
    assert "radius: Largest norm of an update. (a number > 0; default 1.0)" in page
    assert "granularity: vector\nneeds: nothing" in page
    assert "shift" in hpcps("components", "attacks", "--file", file)
    assert "clipped_mean" not in hpcps("components", "rules")
    assert '"clipped_mean"' in hpcps("check", "--schema", file)
    assert '"clipped_mean"' not in hpcps("check", "--schema")


def ids(file):
    return {point.label: point.run_id for point in load_experiment(file).points}


def test_a_run_id_has_the_plugins_that_the_run_uses(folder):
    file = folder / "experiment.toml"
    before = ids(file)
    (folder / "my_rule.py").write_text((folder / "my_rule.py").read_text() + "\n# changed\n")
    changed = ids(file)
    assert changed["average"] == before["average"]
    assert changed["clipped_mean"] != before["clipped_mean"]
    file.write_text(file.read_text().replace('plugins = ["my_rule.py"', 'plugins = ["my_async_rule.py", "my_rule.py"'))
    assert ids(file) == changed
