"""Callbacks that an experiment names: the process of the coordinator calls them, over every transport."""

from pathlib import Path

import numpy as np
import pytest

import hpcps
from hpcps.cli.main import main
from hpcps.execution.reporter import Reporter
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.report.html import sections
from hpcps.protocol.roster import Roster
from hpcps.spec.load import load_experiment

ROOT = Path(__file__).parents[2]
FILE = """
name = "followed"
plugins = ["my_callback.py"]
transport.kind = "inproc"
model.name = "mlp"
data = { name = "digits", limit = 240, test_limit = 40 }
train = { epochs = 2, batch_size = 8, local_steps = 3, device = "cpu" }
topology.workers = 3
"""
CALLBACKS = """
[[callbacks]]
kind = "model_norm"
[[callbacks]]
kind = "model_change"
"""
FAILING = '''
import sys
from typing import Literal
from pydantic import Field
from hpcps.callbacks import Callback


class Failing(Callback):
    """Fails."""

    kind: Literal["failing"] = "failing"
    how: str = Field("raises", description="How it fails.")

    def on_round(self, report):
        """Fail."""
        if self.how == "text":
            return {"loss": "low"}
        if self.how == "exits":
            sys.exit(3)
        raise ValueError("my metric")
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCPS_RESULTS", str(tmp_path / "results"))
    (tmp_path / "my_callback.py").write_text((ROOT / "examples/plugins/my_callback.py").read_text())
    path = tmp_path / "followed.toml"
    path.write_text(FILE + CALLBACKS)
    return path


@pytest.mark.usefixtures("starts_processes")
def test_every_transport_records_the_same(file):
    # With one worker, because the coordinator calls them.
    text = FILE.replace("topology.workers = 3", "topology.workers = 1")
    file.write_text(text + CALLBACKS + '[[sweep]]\n"transport.kind" = ["inproc", "mpi", "pslite"]\n')
    assert main(["run", str(file)]) == 0
    table = hpcps.results("followed")
    values = [name for name in table if name.startswith("values.")]
    assert sorted(values) == ["values.model_change", "values.model_norm"]
    # An evaluation may end before or after the next round.
    lines = table[table.event == "callback"].sort_values(["round", *values])
    alone, *launched = [rows[["round", *values]] for _, rows in lines.groupby("run_id")]
    assert len(alone) > 4
    for rows in launched:
        np.testing.assert_array_equal(rows, alone)


@pytest.mark.thorough
def test_the_records_the_evaluations_and_the_figures_have_their_numbers(file, tmp_path):
    assert main(["run", str(file)]) == 0
    table = hpcps.results("followed")
    last = table[table.event == "evaluation"].iloc[-1]
    assert last["callback.model_norm"] > 0 < last["callback.model_change"]
    assert main(["plot", "followed"]) == 0
    assert list(tmp_path.glob("results/followed/figures/callback_model_change_by_epoch.png"))
    charts = {chart.title: chart for (data,) in [figure_data_of(table)] for chart in sections(data)}
    assert list(charts) == ["Test accuracy", "model_change", "model_norm"]
    ((line,),) = [panel.lines for panel in charts["model_norm"].panels]
    expected = table[table.event == "evaluation"]["callback.model_norm"]
    assert line.y["model_norm"]["mean"] == pytest.approx(expected.to_list(), rel=1e-4)


def test_a_run_id_does_not_include_them(file):
    (followed,) = load_experiment(file).points
    file.write_text(FILE)
    (alone,) = load_experiment(file).points
    assert followed.run_id == alone.run_id
    assert [plugin["file"] for plugin in followed.spec["plugins"]] == ["my_callback.py"]
    assert alone.spec["plugins"] == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "on_round failed in round 0 of run .*, line 20 of .*failing.py: ValueError: my metric"),
        ("exits", "on_round failed in round 0 of run .*, line 19 of .*failing.py: SystemExit: 3"),
        ("text", "on_round returned 'loss': 'low' in round 0 of run .*: the values .* must be numbers"),
    ],
)
def test_an_exception_ends_the_run_with_its_line(file, tmp_path, capsys, how, message):
    (tmp_path / "failing.py").write_text(FAILING)
    file.write_text(FILE.replace("my_callback.py", "failing.py") + f'[[callbacks]]\nkind = "failing"\nhow = "{how}"\n')
    assert main(["run", str(file)]) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    with pytest.raises(hpcps.CallbackError, match=message):
        hpcps.run(str(file), progress=False)


def test_two_of_one_name_are_an_error(file):
    file.write_text(FILE + 2 * '[[callbacks]]\nkind = "model_norm"\n')
    with pytest.raises(hpcps.CallbackError, match=r"two callbacks return 'model_norm' in round \d+.*: give"):
        hpcps.run(str(file), progress=False)


def test_an_unknown_one_is_a_mistake_in_the_file(file, capsys):
    assert main(["check", str(file), "--set", 'callbacks=[{kind="model_chance"}]']) == 2
    assert 'did you mean "model_change"?' in capsys.readouterr().err


@pytest.mark.parametrize(("validators", "known"), [(0, False), (1, True), (2, False)])
def test_a_process_knows_the_pairs_of_the_only_validator(file, validators, known):
    file.write_text(FILE + f"topology.validators = {validators}\n")
    (point,) = load_experiment(file).points
    reports = []
    reporter = Reporter(point.run.identified("0"), "", [hpcps.Callbacks(on_round=reports.append)], alone=False)
    trained = {"round": 0, "epoch": 0.1, "loss": 1.0, "train_accuracy": 0.5}
    combined = {"sent_pairs": 6, "accepted_sent_pairs": 5}
    coordinator = Roster.of(point.run).coordinator
    reporter.recorded(coordinator, "round", trained | combined, lambda: np.zeros(3, np.float32))
    (report,) = reports
    assert (report.sent, report.accepted) == ((6, 5) if known else (None, None))
