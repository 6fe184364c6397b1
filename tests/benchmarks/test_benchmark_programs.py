"""Every benchmark program, as `make bench` starts it, on next to nothing: real launches, real kernels, real peers."""

import importlib
import socket
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(HERE))

import bars  # noqa: E402
from exchanges import OURS, Exchange  # noqa: E402
from launches import Setting  # noqa: E402
from processes import ROOT, Command, MeasurementError, free_port  # noqa: E402


@pytest.fixture
def program(monkeypatch):
    """Return what runs the main function of a program of this folder, with arguments."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        return importlib.import_module(name).main()

    return run


def test_rules(program, monkeypatch, tmp_path):
    pytest.importorskip("numba")
    rules = importlib.import_module("rules")
    whole = rules.Data
    monkeypatch.setattr(rules, "Data", lambda elements: whole(elements // 100))
    arguments = ("--quick", "--peers", "none", "--updates", 4, 16, "--repeats", 1, "--output", tmp_path)
    assert program("rules", *arguments) == 0
    table = (tmp_path / "rules.md").read_text()
    assert all(f"| {name} |" in table for name in rules.SERIES)
    assert all(f"| {name} |" in table for name in rules.robust.CASES)
    assert len(bars.read(tmp_path, "rules")) == 2 * len(rules.SERIES) + 1 + len(rules.robust.CASES)
    assert (tmp_path / "rules.png").stat().st_size


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
    assert [bar.what for bar in bars.read(tmp_path, "round")] == [
        "Round of 2 workers, 1 MB, to MPICH Allreduce",
        "Round of 2 workers, 1 MB, in place, to MPICH Allreduce",
    ]
    assert (tmp_path / "round.png").stat().st_size


@pytest.mark.soak
def test_growth_keeps_a_part_when_later_ones_fail(program, monkeypatch, tmp_path):
    growth = importlib.import_module("growth")

    def fail(amount):
        raise MeasurementError("it broke")

    def be_ended(amount):
        raise SystemExit(143)

    monkeypatch.setattr(growth, "QUICK", growth.Amount(workers=(2,), repeats=1))
    monkeypatch.setitem(growth.PARTS, "servers", fail)
    monkeypatch.setitem(growth.PARTS, "hosts", be_ended)
    with pytest.raises(SystemExit):
        program("growth", "--quick", "--only", "workers", "servers", "hosts", "--output", tmp_path)
    report = (tmp_path / "growth.md").read_text()
    assert "\n| 2 | " in report
    assert "- servers: it broke" in report
    assert (tmp_path / "growth.png").stat().st_size


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


@pytest.mark.soak
def test_training(program, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    training = importlib.import_module("training")
    for name, value in {"WORKERS": 1, "BATCH": 8, "LOCAL_STEPS": 1, "LOOPS": 1}.items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(training, "FORMATS", training.FORMATS[:1])
    assert program("training", 1, 0.02, "--output", tmp_path) == 0
    assert "| 1 PyTorch loops, contiguous | " in (tmp_path / "training.md").read_text()
    assert len(bars.read(tmp_path, "training")) == 1


SMALL = """
name = "{name}"
[topology]
workers = 1
validators = {validators}
[model]
name = "mlp"
[data]
name = "digits"
shards = 4
[train]
epochs = {epochs}
batch_size = 64
local_steps = 1
[[sweep]]
"validation.rule" = [{{ kind = "{rule}" }}]
[[sweep]]
{sweep}
"""


ATTACKS = 'attack = [{ kind = "none" }, { kind = "random", scale = 1, rate = 0.2 }]'


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.soak
def test_tracing(program, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    tracing = importlib.import_module("tracing")
    small = tmp_path / "quickstart.toml"
    small.write_text(SMALL.format(name="quickstart", validators=1, epochs=1, rule="zeno", sweep=ATTACKS))
    monkeypatch.setattr(tracing, "EXPERIMENT", small)
    assert not program("tracing", "--quick", "--output", tmp_path / "results")
    assert "wall seconds | " in (tmp_path / "results/tracing.md").read_text()
    assert len(bars.read(tmp_path / "results", "tracing")) == 1


@pytest.mark.soak
def test_simulation(program, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    simulation = importlib.import_module("simulation")
    small = SMALL.format(
        name="simulation_benchmark", validators=0, epochs=4, rule="average", sweep='"topology.servers" = [1, 2]'
    )
    (tmp_path / "simulation.toml").write_text(small)
    monkeypatch.setattr(simulation, "HERE", tmp_path)
    monkeypatch.setattr(simulation, "DISTURBED", float("inf"))
    results = tmp_path / "results"
    assert program("simulation", "--attempts", 1, "--results", tmp_path / "runs", "--output", results) == 0
    report = (results / "simulation.md").read_text()
    assert "| 1 / 0 / 1 | " in report
    assert "| 2 / 0 / 1 | " in report
    assert len(bars.read(results, "simulation")) == 1


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
