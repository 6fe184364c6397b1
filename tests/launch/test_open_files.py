"""The limit of open files that a shell sets by default does not limit the number of roles."""

import subprocess
import sys

import pytest

MANY = """
name = "many"
transport.kind = "inproc"
topology.workers = 70
model.name = "mlp"
data = { name = "digits", limit = 80, test_limit = 10 }
train = { epochs = 1, batch_size = 1 }
"""
SAY = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
STARTS = {
    "the command line": "from hpcps.cli.main import main; main(['completion', 'bash'])",
    "a rank": "import sys; sys.argv = ['', 'no.plan.json']; from hpcps.execution.__main__ import main; main()",
}


def limited(*command, cwd, hard="hard"):
    shell = ["bash", "-c", 'ulimit -Sn 64; ulimit -Hn "$0"; exec "$@"', hard]
    return subprocess.run([*shell, sys.executable, *command], capture_output=True, text=True, cwd=cwd)


def test_a_run_may_have_more_roles_than_a_process_may_have_files(tmp_path):
    (tmp_path / "many.toml").write_text(MANY)
    done = limited("-m", "hpcps", "run", "many.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("results/many/runs/*/records/*.jsonl"))) > 70


@pytest.mark.parametrize("start", STARTS)
def test_the_limit_is_raised_at_the_start(tmp_path, start):
    done = limited("-c", f"{STARTS[start]}; {SAY}", cwd=tmp_path)
    assert int(done.stdout.split()[-1]) > 64, done.stderr
    done = limited("-c", f"{STARTS[start]}; {SAY}", cwd=tmp_path, hard="100")
    assert int(done.stdout.split()[-1]) == 100, done.stderr
