"""The limit of open files that a shell sets by default does not limit the number of roles."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")

SAY = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
STARTS = {
    "the command line": "from hpcps.cli.main import main; main(['completion', 'bash'])",
    "a rank": "import sys; sys.argv = ['', 'no.plan.json']; from hpcps.execution.__main__ import main; main()",
}


def limited(*command, cwd, hard="hard"):
    shell = ["bash", "-c", 'ulimit -Sn 64; ulimit -Hn "$0"; exec "$@"', hard]
    return subprocess.run([*shell, sys.executable, *command], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize("start", STARTS)
def test_the_limit_is_raised_at_the_start(tmp_path, start):
    done = limited("-c", f"{STARTS[start]}; {SAY}", cwd=tmp_path)
    assert int(done.stdout.split()[-1]) > 64, done.stderr
    done = limited("-c", f"{STARTS[start]}; {SAY}", cwd=tmp_path, hard="100")
    assert int(done.stdout.split()[-1]) == 100, done.stderr
