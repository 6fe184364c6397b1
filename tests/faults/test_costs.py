"""Commands and roles do not pay for what they do not use."""

import os
import subprocess
import sys
from pathlib import Path

from fault_runs import HPCPS, ROOT

QUICKSTART = ROOT / "experiments" / "quickstart.toml"
SERVER = """
import sys
import hpcps.roles.sync.server
from hpcps.protocol.messages import Peer
from hpcps.execution.role_factory import make_role
from hpcps.spec.load import load_experiment
run = load_experiment(sys.argv[1]).points[0].run
assert make_role(run, "run", Peer("server", 0)).peer == Peer("server", 0)
print(*{name.partition(".")[0] for name in sys.modules} & {"torch", "pandas", "pyarrow", "matplotlib", "sklearn"})
"""


def test_a_server_imports_no_framework() -> None:
    called = subprocess.run(
        [sys.executable, "-c", SERVER, str(QUICKSTART)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (called.returncode, called.stdout, called.stderr) == (0, "\n", "")


def test_check_answers_at_once() -> None:
    # Once is enough: who shares the core makes the same work dearer.
    assert any(cpu_seconds("check", QUICKSTART) < 0.5 for _ in range(10))


def cpu_seconds(*arguments: str | Path) -> float:
    command = [*HPCPS, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
