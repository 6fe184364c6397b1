"""The goodput of a run that has lost processes."""

import json

import pytest
from executed import lines, run_here
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
    (loss,) = found.losses
    assert (loss.kind, loss.time, loss.recovery) == ("worker", pytest.approx(1.05), pytest.approx(0.15))
    assert found.returns == pytest.approx((1.35,))
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


def test_of_a_run_that_loses_processes_of_all_roles(tmp_path, capsys):
    """Rounds of 0.2 s; while a validator is lost, the other one serves its workers, but for one round."""
    folder = tmp_path / "survive" / "runs" / "run"
    failures = [("worker-2", 0.5), ("validator-1", 1.05), ("server-1", 1.7), ("standby-0", 2.3)]
    run_here(
        survivors(
            *({"process": process, "at": [at], "noticed": 0.02} for process, at in failures),
            validators=2, servers=2, survive={"workers": True, "validators": True, "servers": True},
        ), folder,
    )  # fmt: skip
    found = goodput(RunDirectory(folder))
    assert [loss.kind for loss in found.losses] == ["worker", "validator", "server", "standby"]
    assert [loss.time for loss in found.losses] == pytest.approx([at for _, at in failures], abs=0.03)
    assert len(found.returns) == 4
    assert found.rate == pytest.approx(20, rel=0.02)
    assert all(0 < seconds <= 0.42 for (seconds,) in found.recoveries.values()), found.recoveries
    # Each validator says what it has combined; server 0 says which of it has entered the model.
    entered = {(v, line["round"]) for line in lines(folder, "server-0", "round") for v in line["validators"]}
    counts = [
        len(line["participants"])
        for v in (0, 1)
        for line in lines(folder, f"validator-{v}", "round")
        if (v, line["round"]) in entered
    ]
    assert found.updates[-1] == sum(counts) < 4 * len(lines(folder, "server-0", "round"))
    assert main(["plot", "goodput", str(folder)]) == 0
    head, _, row = capsys.readouterr().out.splitlines()[:3]
    assert head.count("seconds to the next round without the") == 4
    assert row.startswith("| 4 | 4 | ")


@pytest.mark.parametrize("said", [True, False])
def test_of_several_combiners_adds_up(said, tmp_path):
    """Two validators with two workers each; the second one waits 3 s for a loss, which it learns of after 2 s.

    Server 0 says whose updates enter the model if it may go on without a validator.
    """

    def closed(time, round, workers):
        return {"event": "round", "time": time, "round": round, "arrived": workers, "participants": workers}

    def entered(time, round, validators):
        line = {"event": "round", "time": time, "round": round}
        return line | {"validators": validators} if said else line

    write(tmp_path, "validator-0", [closed(float(n), n, [0, 2]) for n in range(1, 6)])
    loss = {"event": "lost", "time": 4.0, "round": 3, "process": "worker-3", "cause": "c", "counted": False, "ago": 2.0}
    write(
        tmp_path,
        "validator-1",
        [closed(1.0, 1, [1, 3]), closed(2.0, 2, [3, 1]), loss, closed(5.0, 3, [1]), loss | {"time": 9.0}],
    )
    rounds = [(1.0, 1, [0, 1]), (2.0, 2, [1, 0]), (5.0, 3, [0, 1]), (6.0, 4, [0]), (7.0, 5, [] if said else [0])]
    write(tmp_path, "server-0", [entered(*each) for each in rounds])
    found = goodput(RunDirectory(tmp_path))
    assert found.times.tolist() == [1, 2, 5, 6, 7]
    assert found.updates.tolist() == [4, 8, 11, 13, 13 if said else 15]
    assert (found.rate, found.share) == (4.0, found.updates[-1] / 28)
    # No round ends after the second loss.
    assert [(loss.time, loss.recovery) for loss in found.losses] == [(2.0, 3.0), (7.0, None)]


def test_of_a_run_that_never_had_all_workers_is_unknown(tmp_path):
    first = {"event": "round", "time": 1.0, "round": 0, "arrived": [0], "participants": [0]}
    write(tmp_path, "server-0", [first, first | {"time": 2.0, "round": 1, "arrived": [1], "participants": [1]}])
    found = goodput(RunDirectory(tmp_path))
    assert "| 2 | unknown | unknown |" in goodput_table(found)
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


def test_the_round_in_which_another_server_is_lost_does_not_count_as_undisturbed(tmp_path):
    def closed(time, round):
        return {"event": "round", "time": time, "round": round, "arrived": [0, 1], "participants": [0, 1]}

    write(tmp_path, "server-0", [closed(1.0, 0), closed(2.0, 1), closed(5.0, 2)])
    write(tmp_path, "server-1", [{"event": "took_over", "time": 4.5, "round": 2, "ago": 2.0}])
    found = goodput(RunDirectory(tmp_path))
    assert (found.rate, found.share) == (2.0, 6 / 10)
