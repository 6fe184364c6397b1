"""Who was in the rounds of a run with a quorum, counted from the valid lines of its records."""

import json

from hpcps.records.participation import participation
from hpcps.records.run_directory import RunDirectory


def line(round, arrived, **more):
    return {"event": "round", "round": round, "arrived": arrived, "late": [], "absent": [], **more}


def counted(tmp_path, *lines):
    """Return the rows of the workers of a run whose server 0 has recorded these lines."""
    (tmp_path / "records").mkdir(parents=True)
    (tmp_path / "records/server-0.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    counts = participation(RunDirectory(tmp_path))
    return {row.worker: (row.rounds, row.in_time, row.missed) for row in counts.itertuples()}


FIRST = {"event": "start", "attempt": 1}


def test_rounds_of_an_attempt_that_was_given_up_do_not_count(tmp_path):
    again = [line(0, [0, 1]), line(1, [0, 1])]
    wanted = {0: (2, 2, 0), 1: (2, 2, 0)}
    assert counted(tmp_path / "one", FIRST, *again) == wanted
    given_up = [FIRST, line(0, [0]), line(1, [0, 1])]
    assert counted(tmp_path / "anew", *given_up, {"event": "start", "attempt": 2}, *again) == wanted


def test_rounds_after_the_checkpoint_of_a_resumed_run_count_once(tmp_path):
    resumed = {"event": "start", "attempt": 2, "continues": 2}
    lines = [FIRST, line(0, [0, 1]), line(1, [0]), resumed, line(1, [0, 1])]
    assert counted(tmp_path, *lines) == {0: (2, 2, 0), 1: (2, 2, 0)}
