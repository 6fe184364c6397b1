"""What is shown during runs in this process: nothing in a script, a line in a terminal, lines in a log."""

import io
import signal
import sys

import pytest
from small import small

import hpcps
from hpcps.execution import role_driver

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


def test_an_interrupt_is_announced(monkeypatch):
    monkeypatch.setattr(role_driver, "_ASK_EVERY", -1.0)

    def interrupt(report):
        if report.round == 0:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pytest.raises(KeyboardInterrupt):
        hpcps.run(small(), callbacks=hpcps.Callbacks(on_round=interrupt), progress=True)
    said = sys.stderr.getvalue()
    assert "stopping at the next checkpoint ... (once more: at once)" in said
    assert said.endswith("stopped at a checkpoint\n")
