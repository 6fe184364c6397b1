"""Both backends from the same weights on the same batches; each runs `trainer_facts.py` in its own environment."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from training_examples import make_run
from zoo import COUNTS, SIZES

from hpcps.cli.main import main
from hpcps.errors import SpecError
from hpcps.registry import active
from hpcps.training.build import build_trainer

ROOT = Path(__file__).parents[2]


def facts(python, *words):
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    script, *backend = words
    command = [python, str(Path(__file__).with_name(script)), *backend]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def of_mxnet():
    """The Python of the environment with MXNet."""
    if not (ROOT / ".venv-mxnet/.ready").exists():
        missing = ".venv-mxnet is missing: `make mxnet-env` makes it"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return str(ROOT / ".venv-mxnet/bin/python")


@pytest.fixture(scope="module")
def both(of_mxnet):
    return tuple(
        facts(python, "trainer_facts.py", backend)
        for python, backend in ((of_mxnet, "mxnet"), (sys.executable, "torch"))
    )


@pytest.mark.thorough
def test_resnet20_trains_evaluates_and_observes_in_the_same_way(both):
    ours, torchs = (one["resnet"] for one in both)
    assert ours["first"] == torchs["first"]
    assert ours["sizes"] == torchs["sizes"] == [272_474, 1_568]
    assert ours["losses"] == pytest.approx(torchs["losses"], rel=1e-3)
    assert ours["evaluation_kept"]
    assert ours["evaluations"][0] == ours["evaluations"][1]
    # Torch's running variances are of a sample, MXNet's of the batch as a whole: one part in 128·8·8 at most apart.
    assert ours["evaluations"] == pytest.approx(torchs["evaluations"], rel=5e-3)
    assert ours["after"] == pytest.approx(torchs["after"], rel=1e-3)
    assert ours["observed"] == [pytest.approx(torchs["observed"][0], rel=1e-3), True, True]
    assert ours["reestimated"] == pytest.approx(torchs["reestimated"], rel=5e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(3), ids=["nag", "sgd", "adam"])
def test_optimizers_pulls_decay_and_resumption_are_the_same(both, number):
    ours, torchs = (one["small"][number] for one in both)
    assert ours["losses"] == pytest.approx(torchs["losses"], rel=2e-6)
    assert ours["resumed"]
    assert ours["evaluation"] == torchs["evaluation"]


@pytest.mark.thorough
def test_every_model_can_be_built_and_twins_have_the_same_tensors_in_the_same_order(of_mxnet):
    shapes = facts(of_mxnet, "mxnet_models.py")
    models = active().of("models")
    assert set(shapes) == {name for name, model in models.items() if "mxnet" in model.backends}
    for name, model in models.items():
        if name not in shapes:
            continue
        trainable, running = shapes[name]
        if name in COUNTS:
            assert sum(map(math.prod, trainable)) == COUNTS[name], name
        if "torch" not in model.backends:
            continue
        size = SIZES.get(name, 32)
        with torch.device("meta"):
            twin = model().build((model.channels or 1, size, size), 10)
        assert [list(one.shape) for one in twin.parameters()] == trainable, name
        buffers = [list(one.shape) for kind, one in twin.named_buffers() if "running" in kind]
        assert buffers == running, name


def test_without_mxnet_the_message_names_the_environment():
    run = make_run({"name": "digits"})
    run = run.model_copy(update={"model": run.model.model_copy(update={"backend": "mxnet"})})
    with pytest.raises(SpecError, match=r"mxnet and gluoncv cannot be found here: `make mxnet-env`"):
        build_trainer(run, "worker", 0)


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.skipif(find_spec("mxnet") is not None, reason="MXNet is here")
def test_without_mxnet_nothing_is_started(tmp_path, capfd):
    file = ROOT / "experiments/quickstart_mxnet.toml"
    assert main(["run", str(file), "--results", str(tmp_path)]) == 2
    assert capfd.readouterr().err.count("mxnet and gluoncv cannot be found here") == 1
    assert not list(tmp_path.glob("*/launch"))
    assert main(["run", str(file), "--results", str(tmp_path), "--only", "0", "--dry-run"]) == 0
