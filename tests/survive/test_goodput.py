"""The goodput of a run that has lost workers."""

import json

import numpy as np
import pytest
from executed import run_here
from survive.test_lost_workers import LAST, survivors

from hpcps.cli.main import main
from hpcps.figures.goodput import draw_goodput, goodput_table
from hpcps.records.goodput import goodput
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress


def test_of_a_run(tmp_path, capsys):
    """Worker 2 is lost in round 5 and takes part again from round 7 on: 58 updates of 60, in rounds of 0.2 s."""
    folder = tmp_path / "survive" / "runs" / "run"
    run_here(survivors({"process": "worker-2", "at": [1.05]}), folder)
    found = goodput(RunDirectory(folder))
    assert found.updates[-1] == 4 * LAST - 2
    assert found.rate == pytest.approx(20)
    assert found.share == pytest.approx(58 / 60)
    assert found.losses == pytest.approx((1.05,))
    assert found.returns == pytest.approx((1.35,))
    assert found.recoveries == pytest.approx((0.15,))
    assert goodput_table(found).splitlines()[-1] == "| 1 | 1 | 58 | 60 | 96.7 % | 0.15 |"
    assert main(["plot", "goodput", str(folder)]) == 0
    assert "| 96.7 % |" in capsys.readouterr().out
    assert (tmp_path / "survive" / "figures" / "goodput-run.png").stat().st_size > 10_000
    (status,) = SweepProgress([folder]).poll()
    assert [line["process"] for line in status.lost] == ["worker-2"]


def write(folder, name, lines):
    (folder / "records").mkdir(parents=True, exist_ok=True)
    common = {"run": "r", "role": name.partition("-")[0], "index": 0, "host": "h"}
    (folder / "records" / f"{name}.jsonl").write_text("".join(json.dumps(common | line) + "\n" for line in lines))


def test_of_several_combiners_adds_up(tmp_path):
    """Two validators with two workers each; the second one waits 3 s for a loss, which it learns of after 2 s."""

    def closed(time, round, workers):
        return {"event": "round", "time": time, "round": round, "arrived": workers, "participants": workers}

    write(tmp_path, "validator-0", [closed(float(n), n, [0, 2]) for n in range(1, 6)])
    loss = {"event": "lost", "time": 4.0, "round": 3, "process": "worker-3", "cause": "c", "counted": False, "ago": 2.0}
    write(
        tmp_path,
        "validator-1",
        [closed(1.0, 1, [1, 3]), closed(2.0, 2, [3, 1]), loss, closed(5.0, 3, [1]), loss | {"time": 9.0}],
    )
    found = goodput(RunDirectory(tmp_path))
    assert found.times.tolist() == [1, 1, 2, 2, 3, 4, 5, 5]
    assert np.diff([0, *found.updates]).tolist() in ([2, 2, 2, 2, 2, 2, 1, 2], [2, 2, 2, 2, 2, 2, 2, 1])
    assert (found.rate, found.losses, found.recoveries) == (
        4.0,
        (2.0, 7.0),
        (3.0,),
    )  # no round ends after the second loss
    assert found.share == pytest.approx(15 / 20)


def test_of_a_run_that_never_had_all_workers_is_unknown(tmp_path):
    first = {"event": "round", "time": 1.0, "round": 0, "arrived": [0], "participants": [0]}
    write(tmp_path, "server-0", [first, first | {"time": 2.0, "arrived": [1], "participants": [1]}])
    found = goodput(RunDirectory(tmp_path))
    assert "| 2 | unknown | unknown |  |" in goodput_table(found)
    assert draw_goodput(found, "a heading").axes


def test_of_a_run_in_which_all_wait_for_all_there_is_none(tmp_path):
    folder = tmp_path / "survive" / "runs" / "run"
    run_here(survivors(survive={"workers": False}), folder)
    assert goodput(RunDirectory(folder)) is None


def test_status_says_who_was_lost_and_what_waits(tmp_path, capsys):
    folder = tmp_path / "survive" / "runs" / "run"
    run_here(survivors(*[{"process": f"worker-{k}", "at": [0.5]} for k in (1, 2)]), folder)
    (folder / "DONE").unlink()
    record = folder / "records" / "server-0.jsonl"
    whole = record.read_text().splitlines(keepends=True)
    until = next(n for n, line in enumerate(whole) if '"lost"' in line and "worker-2" in line)
    paused = {"event": "paused", "role": "server", "index": 0, "time": 0.5, "round": 2, "workers": 2, "needed": 3}
    record.write_text("".join([*whole[: until + 1], json.dumps(paused) + "\n"]))
    assert main(["status", "survive", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "lost 2 processes, the last worker-2 in round 2: a failure of the simulation" in said
    assert "server-0 waits for replacements: it has 2 workers, and needs 3" in said
