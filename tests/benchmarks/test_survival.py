"""The benchmark of killed processes: what it measures of a program, what it keeps, and what its page says."""

import json
import sys
import textwrap
from dataclasses import replace

import bars
import pytest
import survival
import survival_programs
from survival_report import Measurement
from survival_runs import WORKERS, Measured, Program, measure

PROGRAM = """
import json, subprocess, sys, time
folder, ends = sys.argv[1], len(sys.argv) > 2
wait = [sys.executable, "-c", "import time; time.sleep(60)", "worker"]
child, number = subprocess.Popen(wait), 0
with open(f"{folder}/rounds.jsonl", "a") as rounds:
    while True:
        time.sleep(0.1)
        if child.poll() is not None:
            if ends:
                sys.exit("no standby is there to take its place")
            time.sleep(0.4)
            child, number = subprocess.Popen(wait), max(0, number - 2)
        rounds.write(json.dumps({"event": "round", "round": number, "updates": 3}) + "\\n")
        rounds.flush()
        number += 1
"""


@pytest.fixture
def counts(tmp_path):
    """A program with a worker; when that is lost, two rounds are, too."""
    (tmp_path / "counts.py").write_text(textwrap.dedent(PROGRAM))
    return Program(
        lambda folder: [sys.executable, str(tmp_path / "counts.py"), str(folder)],
        "rounds.jsonl",
        lambda words, folder, pid: "worker" if words[-1] == "worker" else None,
        survival_programs._torchft_updates,
        survival_programs._torchft_again,
        lambda said: "no standby" in said,
    )


@pytest.mark.usefixtures("starts_processes")
def test_rounds_are_counted_once_and_recoveries_from_the_kill_on(counts, tmp_path):
    found = measure(counts, tmp_path, 3.0, 1.0, seed=0)
    kills = found.kills["worker"]
    assert 1 <= kills <= 2
    assert 1 <= found.again <= 2 * kills
    # Each round counts once, with 3 updates; the first two are those after which the time begins.
    numbers = [line["round"] for line in map(json.loads, (tmp_path / "rounds.jsonl").read_text().splitlines())]
    assert 0 < found.updates <= 3 * (len({*numbers}) - 1) < 3 * len(numbers) - 3
    assert found.updates % 3 == 0
    assert found.round > 0.09
    assert found.next["worker"][0] > 0.4, "the wait for another worker counts"
    assert all(first < second for first, second in zip(found.next["worker"], found.whole["worker"], strict=False))


@pytest.mark.usefixtures("starts_processes")
def test_a_stated_end_counts_and_another_one_does_not(counts, tmp_path):
    words = counts.words(tmp_path)
    ends = replace(counts, words=lambda folder: [*words, "ends"])
    found = measure(ends, tmp_path, 5.0, 1.0, seed=0)
    assert found.ended == "no standby is there to take its place"
    assert found.updates > 0
    assert found.kills == {"worker": 1}
    (tmp_path / "rounds.jsonl").unlink()
    with pytest.raises(SystemExit, match="no standby is there"):
        measure(replace(ends, stated=lambda said: False), tmp_path, 5.0, 1.0, seed=0)


def test_a_part_is_kept_while_others_are_measured(monkeypatch, tmp_path, capsys):
    base = Measured(updates=1000, round=0.5)
    killed = Measured(900, 0.5, {"server": 2, "worker": 1}, {"server": [0.4, 0.6]}, {"server": [0.9, 2.3]}, 0, "")
    found = Measurement([base], [killed], 600.0, 15.0, "2026-11-30", "a machine")
    monkeypatch.setattr(survival, "compare", lambda *of: found)

    def measured(part):
        monkeypatch.setattr(sys, "argv", ["survival.py", "--parts", part, "--output", str(tmp_path)])
        assert survival.main() == 0
        return capsys.readouterr().out

    page = measured("any")
    assert "Goodput: 0.900; wanted: 0.75." in page
    assert "| server | 2 | 0.50 | 1.60 | 2.30 |" in page
    assert "| worker | 1, 1 of them without such an end | – | – | – |" in page
    verdicts = {bar.what: (bar.holds, bar.date) for bar in bars.read(tmp_path, "survival")}
    assert [*verdicts.values()] == [(True, "2026-11-30")] * 3
    found = replace(found, other=[replace(killed, again=3, ended="it was lost")], date="2026-12-01")
    page = measured("workers")
    assert "## Any role but the scheduler" in page
    assert "A run ended before its time, and the rest of it counts as nothing: `it was lost`" in page
    assert [bar.holds for bar in bars.read(tmp_path, "survival")] == [True, False, True, True, True]
    assert {bar.date for bar in bars.read(tmp_path, "survival")} == {"2026-11-30", "2026-12-01"}
    assert "| rounds that were computed again | 0 | 3 |" in page


def test_the_role_of_a_server_is_that_of_its_process_now(tmp_path):
    records = tmp_path / "survival/runs/a/records"
    records.mkdir(parents=True)
    lines = [{"event": "start", "pid": 5}, {"event": "took_over", "pid": 7}]
    (records / "server-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    role = survival_programs.hpcps_run("pslite", survival_programs.ROLES, 2).role
    words = ["python", "-m", "hpcps.execution", "plan"]
    assert role([*words, "standby"], tmp_path, 7) == "server"
    assert role([*words, "server"], tmp_path, 8) == "standby"
    assert role([*words, "scheduler"], tmp_path, 9) is None
    role = survival_programs.hpcps_run("mpi", (), 2).role
    assert [role([*words, each], tmp_path, 8) for each in ("validator", "server")] == ["validator", "server"]
    role = survival_programs.hpcps_run("pslite", ["worker"]).role
    assert [role([*words, each], tmp_path, 5) for each in ("worker", "server")] == ["worker", None]
    role = survival.COMPARISONS["scheduler"].other().role
    named = ("scheduler", "worker", "server", "standby")
    assert [role([*words, each], tmp_path, 7) for each in named] == ["scheduler", None, None, None]


def test_every_program_of_hpcps_is_a_valid_experiment(tmp_path):
    from hpcps.spec.load import load_experiment

    for name, comparison in survival.COMPARISONS.items():
        for make in (comparison.base, comparison.other) if name != "torchft" else ():
            words = make().words(tmp_path)
            (point,) = load_experiment(words[words.index("run") + 1]).points
            assert point.run.topology.workers == WORKERS
            assert point.run.survive.servers == (
                name in ("any", "scheduler") or (name == "standbys" and make is comparison.other)
            )
