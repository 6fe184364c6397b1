"""What a benchmark does when something fails, hangs, or cannot listen: it ends, says what, and keeps what it has."""

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import bars
import byzfl_peer
import machine
import processes
import pytest
import suite
from launches import seconds_of
from processes import TRIES, Command, MeasurementError, PortTakenError, on_free_ports, run_together

pytestmark = pytest.mark.usefixtures("starts_processes")

HERE = Path(__file__).parents[2] / "benchmarks"


def python(code, name=""):
    return Command([sys.executable, "-c", textwrap.dedent(code)], name=name)


def running(marker):
    found = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True).stdout
    return marker in found


@pytest.fixture
def marker():
    """A word that nothing else on this machine has on its command line."""
    return f"marked-{time.monotonic()}"


def test_who_fails_first_is_named_and_nobody_is_left(tmp_path, marker, capfd):
    waits = python(f"import time; time.sleep(60)  # {marker}", "waits")
    fails = python("print('before'); raise SystemExit('it broke')", "fails")
    began = time.monotonic()
    assert run_together([waits, fails], tmp_path / "logs", 60) == "fails ended with status 1: it broke"
    assert time.monotonic() - began < 20
    assert "fails: before" in capfd.readouterr().err
    assert not running(marker)


def test_all_that_hang_are_ended_together(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 1.0)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    commands = [python(stubborn, f"node {number}") for number in range(3)]
    began = time.monotonic()
    told = run_together(commands, tmp_path / "logs", 1.0)
    assert told == "it took longer than 1 s; node 0, node 1, node 2 had not ended"
    assert time.monotonic() - began < 4


def test_who_cannot_listen_and_does_not_end_is_not_waited_for(tmp_path, marker):
    hangs = python(f"import time; print('Check failed: bind failed', flush=True); time.sleep(60)  # {marker}", "a node")
    with pytest.raises(PortTakenError, match=r"^a node: Check failed: bind failed$"):
        run_together([hangs], tmp_path / "logs", 60)
    assert not running(marker)


def test_a_measurement_is_begun_again_with_other_ports_but_not_for_ever():
    asked = []

    def measure(lucky):
        asked.append(None)
        if len(asked) < lucky:
            raise PortTakenError("a node: bind failed")
        return len(asked)

    assert on_free_ports(lambda: measure(TRIES)) == TRIES
    asked.clear()
    with pytest.raises(PortTakenError):
        on_free_ports(lambda: measure(TRIES + 1))
    assert len(asked) == TRIES


def test_half_of_a_result_is_none(tmp_path):
    (tmp_path / "times-0-0.json").write_text(json.dumps([[1.0, 2.0]]))
    (tmp_path / "times-0-1.json").write_text("[[1.0, 2")
    assert seconds_of(tmp_path, 0, 1) == [1.0]
    assert seconds_of(tmp_path, 0, 2) == []


@pytest.mark.parametrize(
    ("program", "why"), [("raise SystemExit(3)", "ended with status 3"), ("import time; time.sleep(60)", "in 0.5 s")]
)
def test_byzfl_that_dies_or_hangs_is_named(tmp_path, monkeypatch, program, why):
    (tmp_path / "peer.py").write_text(program)
    monkeypatch.setattr(byzfl_peer, "PROGRAM", tmp_path / "peer.py")
    monkeypatch.setattr(byzfl_peer, "TIMEOUT", 0.5 if "sleep" in program else 30.0)
    with open("/dev/null", "rb") as file, pytest.raises(MeasurementError, match=why):
        byzfl_peer.ByzFL(Path(sys.executable), file.fileno(), file.fileno())


@pytest.fixture
def programs(tmp_path, monkeypatch, marker):
    """Four benchmarks of which the second dies and the third hangs, and a folder of results."""
    sleeps = f"import time; time.sleep(60)  # {marker}"
    texts = {
        "first": "bars.write(results, 'first', [bars.Bar.at_least('first', 2.0, 1.0)])",
        "dies": "raise SystemExit(3)",
        "hangs": f"import subprocess; subprocess.run([sys.executable, '-c', {sleeps!r}])",
        "last": "(results / 'last.md').write_text('# Last')",
    }
    for name, text in texts.items():
        head = f"import sys; from pathlib import Path; sys.path.append({str(HERE)!r}); import bars\n"
        head += "results = Path(sys.argv[2])\n"
        (tmp_path / f"{name}.py").write_text(head + text)
    benchmarks = [suite.Benchmark(name, f"What {name} measures", 0.0, quick=None) for name in texts]
    monkeypatch.setattr(suite, "SUITE", benchmarks)
    monkeypatch.setattr(suite, "HERE", tmp_path)
    monkeypatch.setattr(suite, "SLACK", 1.5)
    monkeypatch.setattr(suite, "make", lambda environment: None)
    monkeypatch.setattr(suite, "clean_up_on_sigterm", lambda: None)
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setattr(sys, "argv", ["suite.py", "--output", str(results)])
    return results


def test_a_suite_goes_on_and_says_what_failed(programs, marker, capfd):
    before = bars.Bar("Of a run before", "≤ 1.00", "0.50", True)
    bars.write(programs, "dies", [before])
    assert suite.main() == 1
    told = capfd.readouterr().out.splitlines()
    assert told[-2:] == ["failed: dies: it ended with status 3", "failed: hangs: it was ended after 0 minutes"]
    assert [line.split(":")[0] for line in told if " of 4" in line] == [f"== {n} of 4" for n in (1, 2, 3, 4)]
    page = (programs / "README.md").read_text()
    assert "| – | What dies measures (it ended with status 3) |" in page
    assert "| [last](last.md) | What last measures |" in page
    today = machine.description()[:10]
    assert f"| first | ≥ 1.00 | 2.00 | ✓ | {today} |" in page
    # What was measured before is still there, with its date.
    assert f"| Of a run before | ≤ 1.00 | 0.50 | ✓ | {today} |" in page
    assert not running(marker)
