"""What is collected of an asynchronous run."""

import time

from toy_trainers import Quadratic, everyone, play, spec

from hpcps.numerics.layout import Layout
from hpcps.records.collect import collect
from hpcps.records.run_directory import RunDirectory


class Patient(Quadratic):
    """Takes long enough to evaluate for the clocks to tell before from after."""

    def evaluate(self):
        time.sleep(0.02)
        return super().evaluate()


def test_totals_are_of_all_that_was_spent_before_an_evaluation(tmp_path):
    run = spec("naive_async", servers=2, workers=3, epochs=4)
    layout = Layout.of([("x", (40,))])
    folder = tmp_path / "toy/runs/one"
    directory = RunDirectory(folder)
    played = play(folder, run, {p: Patient(layout, 4) for p in everyone(run) if p.role != "server"})
    directory.create({"run_id": "one", "label": "toy", "index": 0, "swept": {}, "run": run.model_dump(mode="json")})
    table = collect(tmp_path / "toy").table
    evaluations = table[table.event == "evaluation"]
    assert list(evaluations.epoch) == [1, 2, 3, 4]
    sent = list(evaluations.bytes_sent_total)
    assert 0 < sent[0] < sent[1] < sent[2] < sent[3]
    everything = sum(
        line.get("bytes_sent", 0) for lines in played.records.values() for line in lines if "bytes_sent" in line
    )
    assert 0.6 * everything < sent[3] <= everything
    applied = table[table.event == "applied"]
    assert set(applied.role) == {"server"}
    assert applied.staleness.notna().sum() == 2 * played.log[-1]["version"]
