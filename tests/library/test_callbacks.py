"""Callbacks: what they are told, that they change nothing, and what their exceptions do."""

import io
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from small import small

import hpcps
from hpcps.execution import role_driver
from hpcps.figures import drawing


class Log:
    """What the callbacks of one execution were told."""

    def __init__(self):
        self.rounds, self.evaluations = [], []
        self.callbacks = hpcps.Callbacks(on_round=self.rounds.append, on_evaluation=self.evaluations.append)


def played(folder, described, callbacks=()):
    done = hpcps.run(described, callbacks=callbacks, results=folder)
    (run_id,) = done.ids
    return done, done.final_model(run_id)


TOPOLOGIES = {
    "validator": {},
    "no validator": {"topology": {"validators": 0, "servers": 2}, "validation": {"rule": {"kind": "average"}}},
    "baseline": {
        "topology": {"servers": 0, "validators": 1, "workers": 0},
        "data": {"shards": 3},
        "validation": {"rule": {"kind": "average"}},
    },
    "asynchronous": {"train": {"mode": "async"}, "validation": {"rule": {"kind": "zeno++"}}},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_reports_are_what_is_recorded_and_change_nothing(tmp_path, name):
    described, log = small(**TOPOLOGIES[name]), Log()
    done, model = played(tmp_path / "followed", described, log.callbacks)
    _, alone = played(tmp_path / "alone", described)
    np.testing.assert_array_equal(model, alone)

    table = done.table()
    coordinator = "worker" if name == "no validator" else "validator"
    rounds = table[(table.event == "round") & (table.role == coordinator) & (table["index"] == 0)]
    assert [report.round for report in log.rounds] == list(rounds["round"])
    np.testing.assert_array_equal([report.epoch for report in log.rounds], rounds["epoch"])
    np.testing.assert_array_equal([report.loss for report in log.rounds], rounds["loss"])
    for ours, column in (("sent", "sent_pairs"), ("accepted", "accepted_sent_pairs")):
        told = sum(getattr(report, ours) for report in log.rounds)
        assert told == (table[column].sum() if column in table else 0)
    evaluations = table[table.event == "evaluation"]
    assert [report.epoch for report in log.evaluations] == list(evaluations["epoch"]) == [1, 2]
    assert [report.accuracy for report in log.evaluations] == list(evaluations["accuracy"])
    assert {report.run_id for report in log.rounds + log.evaluations} == set(done.ids)

    versions = [report.version for report in log.rounds]
    assert versions == sorted(versions)
    if name != "asynchronous":
        assert versions == [number + 1 for number in range(len(rounds))]
    np.testing.assert_array_equal(log.rounds[-1].model, model)
    assert any(not np.array_equal(report.model, model) for report in log.rounds)


def test_a_callback_cannot_change_the_model_or_the_random_numbers(tmp_path):
    def meddle(report):
        torch.manual_seed(3)
        torch.rand(100)
        with pytest.raises(ValueError, match="read-only"):
            report.model[0] = 1

    state = torch.random.get_rng_state()
    _, model = played(tmp_path / "meddled", small(), hpcps.Callbacks(on_round=meddle, on_evaluation=meddle))
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(model, played(tmp_path / "alone", small())[1])


def test_callbacks_are_callbacks(tmp_path):
    for wrong in (print, [print]):
        with pytest.raises(TypeError, match=r"callbacks: expects hpcps.Callbacks\(on_round=…\), or a list of them"):
            hpcps.run(small(), callbacks=wrong, results=tmp_path)
    with pytest.raises(TypeError, match="on_round: expects a function, got 3"):
        hpcps.Callbacks(on_round=3)


def test_an_exception_ends_the_run_and_the_sweep(tmp_path):
    seen = []

    def fail(report):
        seen.append(report.run_id)
        if report.round == 1:
            raise ZeroDivisionError("my metric")

    experiment = hpcps.load(small(sweep=[{"seed": [1, 2]}]))
    with pytest.raises(hpcps.CallbackError) as error:
        experiment.run(callbacks=hpcps.Callbacks(on_round=fail))
    assert str(error.value).startswith(f"on_round failed in round 1 of run {experiment.ids[0]} (seed 1), line ")
    assert str(error.value).endswith("test_callbacks.py: ZeroDivisionError: my metric")
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert set(seen) == {experiment.ids[0]}
    # The run can be executed again.
    assert experiment.run().final_model(experiment.ids[1]).size


def test_an_exception_without_a_text_ends_the_run_too():
    mute = type("MuteError", (Exception,), {"__str__": lambda error: None})

    def fail(report):
        raise mute

    with pytest.raises(hpcps.CallbackError, match="MuteError: its text cannot be made") as error:
        hpcps.run(small(train={"epochs": 1}), callbacks=hpcps.Callbacks(on_evaluation=fail))
    assert isinstance(error.value.__cause__, mute)


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    """As with the button of a notebook: one interrupt stops it at a checkpoint."""
    monkeypatch.setattr(role_driver, "_ASK_EVERY", -1.0)
    described = small(train={"epochs": 4}, checkpoint={"every": 0})
    first, second = Log(), Log()

    def interrupt(report):
        if report.round == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped at a checkpoint; run the experiment again to go on"):
        hpcps.run(described, callbacks=[first.callbacks, hpcps.Callbacks(on_round=interrupt)])
    done = hpcps.run(described, callbacks=second.callbacks)
    assert 2 < len(first.rounds) < done.table()["round"].max()
    numbers = [report.round for report in first.rounds + second.rounds]
    assert numbers == list(range(len(numbers)))
    np.testing.assert_array_equal(done.final_model(done.ids[0]), played(tmp_path / "whole", described)[1])


def test_the_second_interrupt_stops_at_once(tmp_path):
    described = small(train={"epochs": 4}, checkpoint={"every": 1})

    def interrupt(report):
        if report.round == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        hpcps.run(described, callbacks=hpcps.Callbacks(on_round=interrupt))
    done = hpcps.run(described)
    np.testing.assert_array_equal(done.final_model(done.ids[0]), played(tmp_path / "whole", described)[1])


def test_a_thread_may_run_an_experiment(tmp_path):
    done = []
    thread = threading.Thread(target=lambda: done.append(hpcps.run(small(train={"epochs": 1}), results=tmp_path)))
    thread.start()
    thread.join()
    assert done[0].final_model(done[0].ids[0]).size


def test_settings_of_torch_stay(tmp_path):
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(2)
    try:
        hpcps.run(small(train={"epochs": 1}), results=tmp_path)
        hpcps.Learner("mlp", "digits").train(1)
        assert torch.get_num_threads() == 2
        assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_num_threads(threads)


SWEEP = {"sweep": [{"seed": [1, 2]}], "train": {"epochs": 1}}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_script_prints_nothing(capfd):
    hpcps.run(small(**SWEEP)).table()
    hpcps.Learner("mlp", "digits").train(1)
    assert capfd.readouterr() == ("", "")


def test_a_log_gets_a_line_for_each_run(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    hpcps.run(small(**SWEEP), progress=True)
    first, second = sys.stderr.getvalue().splitlines()
    assert first.startswith("[1/2] seed 1  epoch ")
    assert second.endswith(" %  done")
    assert "accuracy" in second


def test_a_terminal_gets_a_bar_that_moves(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("hpcps.library.progress._INTERVAL", 0.0)
    hpcps.run(small(train={"epochs": 2}), progress=True)
    shown = sys.stderr.getvalue().split("\r\033[K")
    bars = [line.partition(" ")[0] for line in shown if line.startswith(("#", "-"))]
    assert len(set(bars)) >= 3
    assert bars == sorted(bars, key=lambda bar: bar.count("#"))
    assert any("[1/1]" in line and "left" in line for line in shown)
    assert shown[-1].endswith("  done\n")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_returned_numbers_are_recorded_and_drawn(tmp_path, name):
    norms, errors = [], []

    def on_round(report):
        norms.append(float(np.linalg.norm(report.model)))
        return {"norm": np.float32(norms[-1])}

    def on_evaluation(report):
        errors.append(1 - report.accuracy)
        return {"error": errors[-1]}

    done, _ = played(tmp_path, small(**TOPOLOGIES[name]), hpcps.Callbacks(on_round, on_evaluation))
    table = done.table()
    told = table[table.event == "callback"]
    assert told["values.norm"].dropna().tolist() == pytest.approx(norms, rel=1e-6)
    assert told["values.error"].dropna().tolist() == errors
    evaluations = table[table.event == "evaluation"]
    assert evaluations["callback.error"].tolist() == errors
    assert evaluations["callback.norm"].notna().all()
    drawn = drawing.figures(table)
    assert {"callback_norm_by_epoch", "callback_error_by_epoch"} <= set(drawn)
    (line, *_) = drawn["callback_error_by_epoch"].axes[0].lines
    assert line.get_ydata().tolist() == errors


def test_what_is_returned_besides_numbers_is_no_value(tmp_path):
    done, _ = played(tmp_path / "none", small(), hpcps.Callbacks(on_round=lambda report: [1, 2]))
    assert not (done.table().event == "callback").any()
    with pytest.raises(hpcps.CallbackError, match=r"on_round returned 'norm': 'large' in round 0 .* must be numbers"):
        played(tmp_path / "text", small(), hpcps.Callbacks(on_round=lambda report: {"norm": "large"}))
