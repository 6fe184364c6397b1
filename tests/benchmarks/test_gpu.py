"""The benchmark of a GPU, as far as it goes without one."""

import json
import sys
from dataclasses import asdict

import bars
import device_rules
import gpu
import gpu_report
import gpu_runs
import pytest
from processes import MeasurementError

from hpcps.spec.load import load_experiment

RUN = load_experiment(gpu_runs.EXPERIMENT).points[0].run
ROUNDS = 6


def records(folder, slow=1.0, busy=0.9):
    """A run of two workers, a validator and a server, with rounds of a second; the first three take ten."""
    (folder / "records").mkdir(parents=True)
    (folder / "DONE").write_text(json.dumps({"wall": 40.0}))
    compute = {"worker-0": 0.75, "worker-1": busy, "validator-0": 0.5, "server-0": 0.0}
    for number, (name, steps) in enumerate(compute.items()):
        lines, now = [{"event": "start", "time": 0.0, "device_buffers": "direct"}], 0.5 * number
        for round in range(ROUNDS):
            took = (10.0 if round < gpu_runs.SETTLED else 1.0) * slow
            now += took
            spent = {"compute": steps * took, "exchange": 0.05 * took, "combine": 0.0, "evaluate": 0.0}
            spent["wait"] = took - sum(spent.values())
            lines.append({"event": "round", "time": now, "samples": 256, **spent})
        (folder / "records" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_what_is_read_of_a_run(tmp_path):
    played = gpu_runs.read(records(tmp_path), RUN)
    assert (played.rule, played.round, played.steps) == ("average", pytest.approx(1.0), pytest.approx(0.9))
    assert played.images == pytest.approx(512)
    assert played.between == pytest.approx(0.1)
    assert played.outside == pytest.approx(40 - ROUNDS)
    assert played.curve(startup=5.0) == pytest.approx(5 + 40 - ROUNDS + 2275)
    assert played.shares["worker"]["compute"] == pytest.approx(0.825)
    assert played.shares["server"]["wait"] == pytest.approx(0.95)
    assert played.buffers == "direct"


def test_runs_that_are_done_at_the_time_limit_count(tmp_path, monkeypatch):
    point = load_experiment(gpu_runs.EXPERIMENT, []).points[0]

    def first_run(commands, logs, limit):
        records(tmp_path / gpu_runs.EXPERIMENT.stem / "runs" / point.run_id)
        (tmp_path / gpu_runs.EXPERIMENT.stem / "runs/other").mkdir()
        return "too long"

    monkeypatch.setattr(gpu_runs, "run_together", first_run)
    (played,), _, problem = gpu_runs.play(tmp_path, gpu_runs.POINTS, [], 1.0)
    assert (played.rule, played.images) == ("average", pytest.approx(512))
    assert problem == "1 of 4 runs are done: too long"
    monkeypatch.setattr(gpu_runs, "run_together", lambda commands, logs, limit: "too long")
    with pytest.raises(MeasurementError, match="too long"):
        gpu_runs.play(tmp_path / "nothing", gpu_runs.POINTS, [], 1.0)


def test_what_a_part_kept_before_its_time_limit_counts(tmp_path, monkeypatch):
    def too_long(commands, logs, limit):
        assert commands[0].words[-2] == "--until"
        gpu.keep(tmp_path / "rules.json", [{"rule": "average"}])
        return "it took longer than 80 s; rules had not ended"

    monkeypatch.setattr(gpu, "run_together", too_long)
    assert gpu.in_child("rules", tmp_path) == ([{"rule": "average"}], "it took longer than 80 s; rules had not ended")
    monkeypatch.setattr(gpu, "run_together", lambda *arguments: "rules ended with status 1: error: no GPU")
    assert gpu.in_child("runs", tmp_path) == (None, "no GPU")


def test_the_worst_rule_is_held_against_what_was_to_be_reached(tmp_path):
    good, bad = gpu_runs.read(records(tmp_path / "a", 0.005, 0.95), RUN), gpu_runs.read(records(tmp_path / "b"), RUN)
    good, bad = asdict(good), asdict(bad)
    found = {"runs": {"played": [good], "startup": 5.0}}
    assert [bar.holds for bar in gpu_report.bars_of(found)] == [True, True, True]
    found["runs"]["played"].append(bad)
    assert [bar.holds for bar in gpu_report.bars_of(found)] == [False, False, False]
    assert gpu_report.bars_of(found, {"runs": "1 of 4 runs are done"}) == [], "others may be slower"
    missing = {"ddp": "why", "direct": "1 of 2 runs are done: slow"}
    text = gpu_report.report(found | {"direct": found["runs"]}, missing, "about")
    assert "| buffers direct: MPI sends device memory | measured in part: 1 of 2 runs are done: slow |" in text
    assert "| torch DDP of the same model | not measured: why |" in text
    assert "| average | direct | 512 | 1000.0 | 900.0 | 10.0% | 38.6 |" in text


def test_rules_on_the_device_are_held_against_the_copy_bandwidth():
    kinds = ("average", "zeno", "zeno, a quarter rejected", "trimmed_mean", "median", "phocas")
    shares = {4: 0.9, 16: 0.71, 32: 0.51, 64: 0.31}
    rates = [device_rules.Rate(kind, n, 2e12, shares[n]) for kind in kinds for n in shares]
    found = device_rules.bars_of(rates)
    assert [(bar.wanted, bar.measured, bar.holds) for bar in found] == [
        ("≥ 0.70", "0.31", False),
        ("≥ 0.70", "0.71", True),
        ("≥ 0.50", "0.51", True),
        ("≥ 0.30", "0.31", True),
    ]
    assert "| zeno, a quarter rejected | 32 | 2000 | 51% |" in device_rules.report(rates)
    assert len(device_rules.bars_of([rate for rate in rates if rate.n == 4])) == 2


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, words)])
    return gpu.main()


@pytest.mark.usefixtures("starts_processes")
def test_without_a_gpu_the_report_says_of_a_part_why_it_is_not_measured(tmp_path, monkeypatch, capsys):
    """Also of one that does not end in time; another child measures nothing of it."""
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(gpu.LIMITS, "ddp", 0.05)
    assert run(monkeypatch, "--output", tmp_path, "--only", "direct", "ddp") == 1
    report = (tmp_path / "gpu.md").read_text()
    assert "buffers direct: MPI sends device memory | not measured: torch sees no GPU here |" in report
    assert "torch DDP of the same model | not measured: it took longer than 0 s; ddp had not ended |" in report
    assert bars.read(tmp_path, "gpu") == []
    assert report in capsys.readouterr().out
