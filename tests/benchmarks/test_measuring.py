"""The benchmarks' own machinery: the barrier, a measured round of the real roles, and what is made of the numbers."""

import sys
import threading
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import bars
import growth_report
import pytest
import round_report
import suite
from barrier import Barrier
from exchanges import OURS, Exchange
from launches import Case, Setting, measure
from processes import Command, run_together

HERE = Path(__file__).parents[2] / "benchmarks"


def test_nobody_leaves_a_meeting_before_the_last_one_has_come(tmp_path):
    place = Barrier.prepare(tmp_path / "place")
    left, turns = [], 50

    def take_part(rank):
        barrier = Barrier(place, 3)
        for turn in range(turns):
            if rank == 2:
                time.sleep(0.001)
            came = time.monotonic()
            opened, over = barrier.wait(over=turn == turns - 1)
            left.append((turn, came, opened, over))
        barrier.close()

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(left) == 3 * turns
    for turn in range(turns):
        here = [entry for entry in left if entry[0] == turn]
        assert len({opened for _, _, opened, _ in here}) == 1
        assert here[0][2] >= max(came for _, came, _, _ in here)
        assert all(over == (turn == turns - 1) for *_, over in here)


@pytest.mark.usefixtures("starts_processes")
def test_a_round_of_the_real_roles_is_measured():
    measured = measure(Setting(2, 2), [Case(5000, 4), Case(70000, 3)], 60)
    assert measured.problem == ""
    assert [len(seconds) for seconds in measured.rounds] == [2, 1]
    assert [len(seconds) for seconds in measured.adopted] == [1, 1], "every other round"
    for seconds, adopted in zip(measured.rounds, measured.adopted, strict=True):
        assert all(0 < until < 5 for until in (*seconds, *adopted))


@pytest.mark.usefixtures("starts_processes")
def test_a_wrong_sum_is_found(tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys; from pathlib import Path; import numpy as np\n"
        f"sys.path.insert(0, {str(HERE / 'peers')!r})\n"
        "from rounds import take_rounds\n"
        "class Wrong:\n"
        "    def __init__(self, elements): self.buffer = np.zeros(elements, np.float32)\n"
        "    def run(self): self.buffer += self.buffer\n"
        "take_rounds(Path(sys.argv[1]), int(sys.argv[2]), 2, Wrong)\n"
    )
    place = Barrier.prepare(tmp_path / "place")
    (place / "cases.json").write_text('[{"elements": 10, "rounds": 2, "seconds": 1}]')
    commands = [Command([sys.executable, str(program), str(place), str(rank)]) for rank in range(2)]
    assert "the sum of round 0 is wrong" in run_together(commands, tmp_path / "log", 30)


def test_verdicts_compare_the_best_of_ours_with_the_best_peer_and_the_bytes():
    case = (4, 64)
    found = {
        "hpcps": {case: [0.030, 0.040, 0.020]},
        "hpcps adopted": {case: [0.080]},
        "hpcps packed": {case: [0.090, 0.100]},
        "hpcps-2": {case: [0.050]},
        "hpcps-2 adopted": {case: [0.066]},
        "mpich": {case: [0.10]},
        "intel": {case: [0.060]},
        "copy-2": {case: [0.040]},
    }
    mpich, intel = (Exchange(name, name) for name in ("mpich", "intel"))
    (row,) = round_report.Table(found, [*OURS, mpich, intel]).verdicts()
    # The headline is the time until every worker has the result, in which two servers are faster here.
    assert row["by"] == "hpcps, 2 servers"
    assert row["best_peer"] == "intel"
    assert row["ratio"] == pytest.approx(1.1)
    assert row["packed_ratio"] == pytest.approx(0.095 / 0.060)
    assert row["in_place_ratio"] == pytest.approx(0.5)
    # Two processes copy 8 arrays in 0.04 s: 5 ms each, of 2 M bytes; the round moves 6 M.
    assert row["bound"] == pytest.approx(0.015)
    assert row["of_bound"] == pytest.approx(2.0)
    held = {bar.what: bar.holds for bar in round_report.bars([row])}
    assert list(held.values()) == [False, False, True, False]
    assert list(held)[:2] == [f"Round of 4 workers, 64 MB{what}, to intel" for what in ("", ", with packing")]


def test_memory_is_held_against_what_a_further_worker_adds(tmp_path):
    rows = [
        {"workers": n, "validators": 0, "rule": "average", "hosts": True, "all": 1.0, "server": {"pss": 2 + 0.5 * n}}
        for n in (4, 8)
    ]
    (bar,) = growth_report.bars({"memory": rows})
    assert (bar.measured, bar.holds) == ("0.50", False)
    bars.write(tmp_path, "growth", [bar])
    today = date.today().isoformat()
    assert bars.read(tmp_path, "growth") == [replace(bar, date=today)]
    assert bars.read(tmp_path, "round") == []


def test_the_front_page_is_that_of_the_results() -> None:
    """A target that a newer measurement misses cannot stay ticked."""
    results = Path(bars.__file__).parent / "results"
    page = suite.front_page(results, {})
    assert (results / "README.md").read_text(encoding="utf-8") == page, "run benchmarks/suite.py --page"
    missed = [bar.what for name in suite.SUITE for bar in bars.read(results, name.name) if not bar.holds]
    assert page.count("**missed**") == len(missed) > 0
