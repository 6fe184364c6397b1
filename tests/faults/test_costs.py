"""Commands and roles do not pay for what they do not use."""

import subprocess
import sys

from fault_runs import ROOT

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
