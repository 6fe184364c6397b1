"""Every benchmark program, as `make bench` starts it, on next to nothing: real launches, real kernels, real peers."""

import importlib
import re
import socket
import subprocess
import sys

import bars
import pytest
from exchanges import OURS, Exchange
from launches import Setting
from processes import ROOT, Command, free_port


@pytest.fixture
def program(monkeypatch):
    """Return what runs the main function of a program of this folder, with arguments."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        return importlib.import_module(name).main()

    return run


@pytest.mark.thorough
def test_rules(program, monkeypatch, tmp_path):
    pytest.importorskip("numba")
    rules = importlib.import_module("rules")
    whole = rules.Data
    monkeypatch.setattr(rules, "Data", lambda elements: whole(elements // 100))
    peer = (ROOT / ".venv-byzfl/.ready").exists()
    arguments = ("--quick", "--peers", "byzfl" if peer else "none", "--updates", 4, 16, "--repeats", 1)
    assert program("rules", *arguments, "--output", tmp_path) == 0
    table = (tmp_path / "rules.md").read_text()
    assert all(f"| {name} |" in table for name in rules.SERIES)
    assert all(f"| {name} |" in table for name in rules.robust.CASES)
    beside = [case for case in rules.robust.CASES.values() if case.byzfl] + 2 * list(rules.BYZFL) if peer else []
    assert len(bars.read(tmp_path, "rules")) == 2 * len(rules.SERIES) + 1 + len(rules.robust.CASES) + len(beside)
    assert len(quotients(table)) == len(beside)
    assert (tmp_path / "rules.png").stat().st_size


def quotients(table):
    """Check that in each row the seconds of ByzFL divided by those of hpcps are the last column; return these."""
    cells = [[cell.strip(" ¹") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    rows = [row for row in cells if row and row[-2] in ("numpy", "torch")]
    found = [(float(row[-3]) / float(row[-4]), float(row[-1])) for row in rows]
    assert [each for each in found if each[0] != pytest.approx(each[1], rel=0.02)] == []
    return found


class Slower:
    """A ByzFL whose first run takes a minute, whose others take three times as long as ours, and a tenth with torch."""

    def __init__(self):
        self.runs = []

    def seconds(self, rule, updates, form, f=None):
        self.runs.append(form)
        if rule == "numpy only" and form == "torch":
            return None
        return 60.0 if len(self.runs) < 3 else 3.0 if form == "numpy" else 0.3


@pytest.mark.parametrize(("rule", "form", "ratio"), [("median", "torch", 0.3), ("numpy only", "numpy", 3.0)])
def test_byzfl_is_measured_as_we_are(rule, form, ratio):
    """Neither first run counts, and as many of both do; the faster of numpy and torch does."""
    peer = importlib.import_module("byzfl_peer")
    theirs, own = Slower(), iter([50.0, *[1.0] * 5])
    found = peer.ByzFL.beside(theirs, rule, None, lambda: next(own), 5)
    assert (found.form, found.ratio) == (form, pytest.approx(ratio))
    assert len(found.ours) == len(found.theirs) == 5
    assert next(own, None) is None
    assert theirs.runs[4:] == [form] * 5
    robust = importlib.import_module("robust")
    took = {name: [1.0] for name in ["read", *robust.CASES]}
    (quotient,) = quotients("\n".join(robust.lines(robust.Times(took, {"median": found}))))
    assert quotient[1] == pytest.approx(ratio)


OF_OURS = ("hpcps, 1 server", "… with packing")


@pytest.mark.usefixtures("starts_processes")
def test_round_beside_a_peer_and_one_that_fails(program, monkeypatch, tmp_path):
    rounds = importlib.import_module("round")
    mpich = next(peer for peer in rounds.OTHER_PEERS if peer.name == "mpich")
    dies = [sys.executable, "-c", "raise SystemExit('error: it broke')"]
    broken = Exchange("broken", "A broken peer", lambda folder, ranks: [Command(dies, name="rank 0")])
    monkeypatch.setattr(rounds, "OURS", OURS[:1])
    monkeypatch.setattr(rounds, "OTHER_PEERS", [mpich, broken])
    amount = ("--ranks", 2, "--sizes", 1, "--repeats", 1, "--seconds", 0.1)
    assert program("round", *amount, "--output", tmp_path) == 1
    report = (tmp_path / "round.md").read_text()
    assert "- A broken peer, 2 ranks: rank 0 ended with status 1: error: it broke" in report
    assert "| MPICH Allreduce | " in report
    (adopted,), (packed,) = (re.findall(rf"^\| {title} \| ([0-9.]+)", report, re.MULTILINE) for title in OF_OURS)
    assert float(packed) > 0
    assert float(adopted) > 0
    assert "| **with packing / best peer** | **" in report
    assert [bar.what for bar in bars.read(tmp_path, "round")] == [
        "Round of 2 workers, 1 MB, to MPICH Allreduce",
        "Round of 2 workers, 1 MB, with packing, to MPICH Allreduce",
        "Round of 2 workers, 1 MB, in place, to MPICH Allreduce",
    ]
    assert (tmp_path / "round.png").stat().st_size


STEPS = """
import copy
import sys
sys.path.insert(0, sys.argv[1])
import torch
from torch.nn.parallel import DistributedDataParallel
import hpcps.torch as bps
from own_script_rank import Buckets, training

bps.init()
model = torch.nn.Sequential(torch.nn.Linear(8, 500), torch.nn.BatchNorm1d(500), torch.nn.Linear(500, 3))
torch.manual_seed(bps.rank())
x = torch.randn(4, 8)
for step in training(model, x).values():
    step()
with_gloo, with_mpi = (DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=0.005) for _ in range(2))
with_mpi.register_comm_hook(None, Buckets().hook)
found = []
for each in (with_gloo, with_mpi):
    for _ in range(2):  # after the first step, there are several buckets
        each.zero_grad()
        each(x).square().sum().backward()
    found.append([parameter.grad.clone() for parameter in each.parameters()])
assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found, strict=True))
sys.stdout.write(f"equal {found[0][0].norm().item() > 0}\\n")  # one write: output of processes is not buffered
"""


def test_scheduling_compares_what_its_ranks_measure(program, monkeypatch, tmp_path):
    scheduling = importlib.import_module("scheduling")
    modes, kinds = ("with priorities", "without priorities"), ("DistributedOptimizer", "CrossBarrier", "DDP with gloo")
    found = {
        "tensors": {
            f"{what}, {mode}": [[first * scale, 9.0, 0.005]]
            for what, first in (("begun", 0.001), ("first layer", 0.2), ("whole", 0.6))
            for mode, scale in zip(modes, (1, 2), strict=True)
        },
        "model": {kind: [[seconds]] for kind, seconds in zip(kinds, (2.0, 1.5, 3.0), strict=True)},
        "small_model": {kind: [[seconds]] for kind, seconds in zip(kinds, (0.2, 0.16, 0.32), strict=True)},
    }
    monkeypatch.setattr(scheduling, "_measured", lambda what, turns: found[what])
    assert program("scheduling", "--quick", "--output", tmp_path) == 0
    measured = [bar.measured for bar in bars.read(tmp_path, "scheduling")]
    assert measured == ["0.50", "0.50", "0.75", "0.50", "0.80", "0.50"]
    assert "| CrossBarrier | 1500 | 1500 |" in (tmp_path / "scheduling.md").read_text()


@pytest.mark.soak
@pytest.mark.usefixtures("starts_processes")
def test_the_peers_of_own_scripts_average_what_ddp_does(tmp_path):
    (tmp_path / "steps.py").write_text(STEPS)
    words = [sys.executable, "-m", "hpcps", "launch", "-n", "2", sys.executable, "steps.py", str(ROOT / "benchmarks")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.count("equal True") == 2, done.stdout + done.stderr


@pytest.mark.usefixtures("starts_processes")
def test_growth_of_memory(monkeypatch):
    growth = importlib.import_module("growth")
    small = growth._footprint(Setting(1), 1, None)
    megabyte = 2**20
    assert all(3 * megabyte < small[role]["own"] <= small[role]["pss"] for role in ("worker", "server"))
    assert small["validator"] == {"pss": 0, "own": 0}
    # With their guards; and the peaks of both need not be of the same moment.
    assert small["worker"]["pss"] < small["all"] < 2 * (small["worker"]["pss"] + small["server"]["pss"])
    models = (growth.MEMORY_MB - 1) * megabyte
    large = {
        role: {"pss": small[role]["pss"] + 3 * models, "own": models} for role in ("worker", "validator", "server")
    }
    large["all"] = small["all"] + 6 * models
    monkeypatch.setattr(growth, "_footprint", lambda setting, size, network: small if size == 1 else large)
    row = growth._memory_row(Setting(1), None)
    assert row["worker"]["pss"] == 3
    assert row["validator"]["own"] == 1
    assert row["all"] == 6


@pytest.mark.usefixtures("starts_processes")
def test_pslite_is_begun_again_where_a_port_is_taken(program, monkeypatch, tmp_path, capfd):
    pytest.importorskip("zmq")
    pslite = importlib.import_module("pslite")
    mxnet = ROOT / ".venv-mxnet"
    kinds = {"all hpcps": ("hpcps", "hpcps")}
    if (mxnet / ".ready").exists():
        kinds |= {pslite.BASE: ("hpcps", "mxnet")}  # nodes of both kinds, and one import of MXNet
    monkeypatch.setattr(pslite, "WORKERS", 1)
    monkeypatch.setattr(pslite, "COMBINATIONS", kinds)
    monkeypatch.setattr(pslite, "CASES", {"1 MB": (4096, 2, 2)})
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports = iter([other.getsockname()[1], *(free_port() for _ in kinds)])
        monkeypatch.setattr(pslite, "free_port", lambda: next(ports))
        python = mxnet / "bin/python" if len(kinds) > 1 else sys.executable
        assert program("pslite", "--repeats", 1, "--mxnet", python, "--output", tmp_path / "pslite.md") == 0
    assert capfd.readouterr().out.count("once more, with other ports") == 1
    assert next(ports, None) is None
    assert "| all hpcps | " in (tmp_path / "pslite.md").read_text()
    assert len(bars.read(tmp_path, "pslite")) == 2 * (len(kinds) - 1)
