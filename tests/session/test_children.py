"""Processes that a process of a launch over MPI forks are outside of it: however they end, the launch goes on."""

import re
import subprocess
import sys

import pytest

from hpcps.records.files import read_lines

pytestmark = pytest.mark.usefixtures("starts_processes")

SCRIPT = """
import multiprocessing, os, sys
import numpy as np
if sys.argv[1] == "before": from mpi4py import MPI
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import join_launch
from hpcps.session.tensors import Declaration
session = join_launch()
ending = ScriptEnding(session)
data, target = np.ones(10, np.float32), np.zeros(40, np.uint8)
tensor = session.declare(Declaration("a", "float32", ((10,),), "sum"))
def exchange():
    session.wait(session.start(tensor, [data.view(np.uint8)], [target]))
def fail(): raise ValueError("of the child")
exchange()
children = [lambda: sys.exit(0), lambda: sys.exit(3), fail, exchange]
ends = []
for child in children if session.rank == 1 else []:
    if not (pid := os.fork()):
        child()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
if session.rank == 1:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        ends.append(pool.map(len, ["ab", "abc"]))
    sys.stdout.write(f"ends {ends}\\n")
    if (pid := os.fork()) == 0:
        sys.stdout.write("the child runs off\\n")
if session.rank == 0 or pid:
    exchange()
    sys.stdout.write(f"sum {target.view(np.float32)[0]}\\n")
"""


@pytest.mark.parametrize("mpi", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_children_of_a_script(mpi, tmp_path):
    """mpi4py is imported before the session begins, or not: who imports it first decides who finalises MPI."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcps", "launch", "-n", "2", "--results", tmp_path / "results"]
    command += [sys.executable, tmp_path / "script.py", mpi]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "ends [0, 3, 1, 1, [2, 3]]" in printed
    assert "ValueError: of the child" in printed
    assert "worker-1 has forked this process, which is not a member of its session: exchange in worker-1" in printed
    assert (printed.count("sum 2.0"), printed.count("the child runs off")) == (2, 1)
    (record,) = tmp_path.glob("results/*/runs/*/records/worker-1.jsonl")
    assert [line["event"] for line in read_lines(record).lines] == ["start", "end"]


EXPERIMENT = """
name = "forks"
plugins = ["forking.py"]
[topology]
workers = 2
validators = 0
[model]
name = "mlp"
[data]
name = "forking"
[train]
epochs = 2
batch_size = 20
"""

PLUGIN = '''
import multiprocessing, os, sys
from typing import Literal
import numpy as np
from hpcps.data import Data, Facts, InMemory, Samples

class Forking(Data):
    """Points, while processes come and go."""

    name: Literal["forking"] = "forking"
    facts = Facts(shape=(20,), classes=4, train=120, test=40)

    def open(self):
        """Return points, in a forked process too, which then goes on as its parent does."""
        if "PMI_RANK" in os.environ:
            self.fork()
        random = np.random.default_rng(0)
        samples = Samples(random.normal(size=(160, 20)).astype(np.float32), random.integers(0, 4, 160))
        return InMemory(samples.take(slice(0, 120))), InMemory(samples.take(slice(120, None)))

    def fork(self):
        if not os.fork(): raise ValueError("of the child")
        if not os.fork(): sys.exit(3)
        statuses = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)]
        with multiprocessing.get_context("fork").Pool(1) as pool:
            statuses += pool.map(len, ["ab"])
        if os.fork():
            sys.stdout.write(f"ends {sorted(statuses)} {os.waitstatus_to_exitcode(os.wait()[1])}\\n")
'''


def test_children_of_a_plugin(tmp_path):
    (tmp_path / "forking.py").write_text(PLUGIN)
    (tmp_path / "forks.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-m", "hpcps", "run", tmp_path / "forks.toml", "--results", tmp_path / "results"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert len(re.findall(r"ends \[1, 1, 2\] 0$", printed, re.M)) == 2, printed
    (run,) = tmp_path.glob("results/forks/runs/*")
    assert (run / "DONE").exists()
    assert not list(run.glob("failure/*"))
    for worker in ("worker-0", "worker-1"):
        events = [line["event"] for line in read_lines(run / "records" / f"{worker}.jsonl").lines]
        assert (events.count("start"), events.count("end")) == (1, 1)
