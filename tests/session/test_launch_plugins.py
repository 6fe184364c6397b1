"""`hpcps launch --plugin`: every process of a script, also a server, knows the components of the files."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcps.cli.main import main

pytestmark = pytest.mark.usefixtures("starts_processes")

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"
FILES = [PLUGINS / f"my_{name}.py" for name in ("rule", "preaggregator", "attack", "compressor")]
SCRIPT = """
import sys
import numpy as np
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import join_launch
from hpcps.session.tensors import Declaration
if sys.argv[1:] == ["load"]:
    from hpcps.registry import load_plugins
    load_plugins(FILE)
session = join_launch(60.0)
ending = ScriptEnding(session)
reductions = [
    {"kind": "clipped_mean"}, {"kind": "median", "before": [{"kind": "direction"}]},
    {"kind": "median", "attack": {"kind": "shift", "rate": 0.4, "scope": "worker"}, "seed": 1},
    {"kind": "median", "compression": {"kind": "fixed"}},
]
for number, reduction in enumerate(reductions[: 1 if sys.argv[1:] else None]):
    values = np.random.default_rng([session.rank, number]).standard_normal(50).astype(np.float32)
    tensor = session.declare(Declaration(f"t{number}", "float32", ((50,),), reduction))
    target = np.zeros(200, np.uint8)
    session.wait(session.start(tensor, [values.view(np.uint8)], [target]))
    sys.stdout.write(f"result {number} {target.tobytes().hex()}\\n")
"""


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    (tmp_path / "script.py").write_text(SCRIPT.replace("FILE", repr(str(FILES[0]))))
    monkeypatch.chdir(tmp_path)

    def call(*arguments, plugins=(), words=()):
        named = [word for file in plugins for word in ("--plugin", str(file))]
        status = main(["launch", "-n", "3", *arguments, *named, sys.executable, "script.py", *words])
        read = capfd.readouterr()
        return status, read.out + read.err

    return call


def test_plugins_of_a_launch_work_by_name_in_every_process(launch, tmp_path):
    found = []
    for arguments in ((), ("--servers", "1"), ("--servers", "1", "--transport", "pslite")):
        status, said = launch(*arguments, plugins=FILES)
        assert status == 0, said
        found.append(sorted({line for line in said.splitlines() if line.startswith("result")}))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4, "all workers get the same results"
    rows = np.stack([np.random.default_rng([rank, 0]).standard_normal(50) for rank in range(3)]).astype(np.float32)
    result = np.frombuffer(bytes.fromhex(found[0][0].split()[2]), np.float32)
    assert not np.allclose(result, rows.mean(axis=0)), "it is not the mean"
    copies = {path.name for path in tmp_path.glob("results/script/runs/*/plugins/*")}
    assert copies == {file.name for file in FILES}


def test_a_server_says_which_name_it_does_not_know_and_what_to_do(launch):
    status, said = launch("--servers", "1", words=["load"])
    assert status == 1
    assert "server-0 cannot combine tensor 't0' of worker-" in said
    assert 'unknown rule "clipped_mean"' in said
    assert "start with `hpcps launch --plugin FILE`" in said


def test_a_file_that_is_no_plugin_starts_nothing(launch, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    for file, says in (
        ("none.py", "none.py: there is no such file"),
        ("empty.py", "empty.py:1: it defines no component"),
    ):
        status, said = launch(plugins=[file])
        assert status == 2
        assert says in said
    assert not os.path.exists(tmp_path / "results")
