"""Frameworks on PyTorch: `make frameworks` runs these tests where they are installed."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from running_processes import free_port

torch = pytest.importorskip("torch")

import hpcps.torch as bps  # noqa: E402

FOLDER = Path(__file__).resolve().parents[2] / "examples/own_script"
FRAMEWORKS = ("lightning", "accelerate", "transformers")
EXAMPLES = ("lightning", "accelerate", "trainer")
WHY = "the frameworks are not installed: `make frameworks` installs them in an environment"
if not all(map(find_spec, FRAMEWORKS)):
    pytest.skip(WHY, allow_module_level=True)

pytestmark = pytest.mark.usefixtures("starts_processes")


def run(folder, *command):
    """Run a command in a folder; return what it has printed."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def torchrun():
    """Return the words that precede a script: its default port may be that of another job of this machine."""
    port = str(free_port())
    return sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_learns_the_digits_under_a_launch(name, tmp_path):
    """Both processes report the steps whose gradients hpcps has combined: 23 of 32 samples in each epoch."""
    script = FOLDER / f"digits_{name}.py"
    launch = sys.executable, "-m", "hpcps", "launch", "-n", "2", sys.executable
    printed = run(tmp_path, *launch, script, "--epochs", "4", "--rule", "median")
    assert "2 processes: accuracy 0.9" in printed
    assert printed.count(": 92 steps, ") == 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_under_torchrun(name, tmp_path):
    assert "2 processes: accuracy 0." in run(tmp_path, *torchrun(), FOLDER / f"digits_{name}.py", "--epochs", "1")


def test_a_rule_that_cannot_be_used_is_named(tmp_path):
    for name in EXAMPLES:
        script = FOLDER / f"digits_{name}.py"
        done = subprocess.run(
            [*torchrun(), script, "--rule", "krum"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode != 0
        assert "rule krum" in done.stderr, done.stderr


def test_accelerate(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    import accelerate

    def train():
        torch.set_num_threads(1)
        bps.init(timeout=60)
        model = accelerate.Accelerator(cpu=True).prepare(torch.nn.Linear(2, 1))
        model.register_comm_hook(bps.exchange(), bps.hook)
        model(torch.full((1, 2), 1.0 + 2 * bps.rank())).sum().backward()
        assert (bps.size(), model.module.weight.grad.tolist()) == (2, [[2.0, 2.0]])

    accelerate.debug_launcher(train, num_processes=2)
