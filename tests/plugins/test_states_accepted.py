"""A synchronous rule of a plugin states which updates it accepts, or the acceptance is unknown."""

import json
from pathlib import Path

import numpy as np
import pytest
from installed import BACKEND

import hpcps
from hpcps.aggregation.outcomes import Acceptance, Tally
from hpcps.cli.main import main
from hpcps.figures.report.content import read_content
from hpcps.figures.report.html import render
from hpcps.numerics.layout import Layout
from hpcps.numerics.state import State
from hpcps.numerics.updates import Updates
from hpcps.records.collect import collect
from hpcps.records.export import summarize
from hpcps.records.files import read_lines
from hpcps.records.locate import ExperimentLocation
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress
from hpcps.records.table import write_table
from hpcps.registry.plugins import load
from hpcps.rules import Nnm, combine_finite

PLUGIN = """
from typing import Literal
import numpy as np
from hpcps.rules import Rule

class Shortest(Rule):
    "The mean of all updates but the longest."
    kind: Literal["silent"] = "silent"

    def aggregate(self, updates, context):
        norms = np.linalg.norm(updates, axis=1)
        return updates[norms < norms.max()].sum(axis=0) / max(1, len(updates) - 1)

class Stating(Shortest):
    "The same; it states the updates of the mean."
    kind: Literal["stating"] = "stating"

    def aggregate(self, updates, context):
        norms = np.linalg.norm(updates, axis=1)
        return super().aggregate(updates, context), norms < norms.max()
"""
FILE = f"""
name = "dropping"
plugins = ["dropping.py"]
transport.kind = "inproc"
model = {{ name = "mlp", backend = "{BACKEND}" }}
data = {{ name = "digits", limit = 160, test_limit = 32 }}
train = {{ epochs = 2, batch_size = 8, local_steps = 2 }}
topology.workers = 4
attack = {{ kind = "random", rate = 0.5 }}
[[sweep]]
"topology.validators" = [1, 0]
[[sweep]]
"validation.rule.kind" = ["silent", "stating"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dropping.py").write_text(PLUGIN)
    (tmp_path / "dropping.toml").write_text(FILE)
    return tmp_path


@pytest.mark.thorough
def test_a_rule_that_returns_no_mask_has_an_unknown_acceptance(folder, capsys):
    assert main(["run", "dropping.toml"]) == 0
    said = capsys.readouterr().out
    assert "accepted unknown" in said
    assert "accepted  75.0 %" in said
    assert "100.0 %" not in said
    results = folder / "results/dropping"
    paths = sorted((results / "runs").iterdir())
    kinds = [RunDirectory(path).spec["run"]["validation"]["rule"]["kind"] for path in paths]
    assert sorted(kinds) == ["silent", "silent", "stating", "stating"]
    for path, kind in zip(paths, kinds, strict=True):
        lines = [line for file in RunDirectory(path).records for line in read_lines(file).lines]
        rounds = [line for line in lines if line["event"] == "round" and "received_pairs" in line]
        for name in ("accepted_pairs", "accepted_sent_pairs", "acceptance_rate", "kept_out"):
            assert {line[name] is None for line in rounds} == {kind == "silent"}, name
        assert all(line["sent_pairs"] == line["received_pairs"] > 0 for line in rounds)
        rates = [line["acceptance_rate_sent_cumulative"] for line in lines if "acceptance_rate_sent_cumulative" in line]
        assert set(rates) <= ({None} if kind == "silent" else {0.75})

    assert main(["status", "dropping"]) == 0
    said = capsys.readouterr().out
    assert said.count("unknown") == 2
    assert said.count("75.0 %") == 2
    assert "stalled" not in said
    collected = collect(results)
    write_table(collected.table, folder / "published/table.parquet")
    reported = read_content(ExperimentLocation(folder / "published"))
    assert render(reported).count("<td>unknown</td>") == 2
    followed = {run.run_id: run for run in SweepProgress(paths).poll()}
    for run, in_report in zip(collected.runs, reported.status.runs, strict=True):
        status = followed[run.run_id]
        assert run.acceptance == status.acceptance == in_report.acceptance
        assert run.acceptance.sent > 0
        assert run.acceptance.rate == (None if "silent" in run.label else 0.75)
        assert not run.stalled
        assert not status.stalled
    table = collected.table
    silent, evaluation = table["rule"] == "silent", table["event"] == "evaluation"
    for name in ("accepted_pairs_total", "accepted_sent_pairs_total"):
        assert table[silent & evaluation][name].isna().all()
        assert (table[~silent & evaluation][name] > 0).all()
    assert (table[evaluation]["stalled"] == 0).all()
    # Which of the attacked blocks entered the model is unknown, too.
    assert set(table[table["event"] == "bypass"]["rule"]) == {"stating"}
    accepted = summarize(table).set_index("validation.rule.kind")["accepted"]
    assert accepted["silent"].isna().all()
    assert (accepted["stating"] == 75).all()


def test_the_mask_does_not_change_the_model_and_callbacks_say_none(folder):
    models, counts = [], []
    for rule in ("silent", "stating"):
        rounds, evaluations = [], []
        callbacks = hpcps.Callbacks(rounds.append, evaluations.append)
        done = hpcps.run(
            "dropping.toml", set={"topology.validators": 1}, only=rule, callbacks=callbacks, progress=False
        )
        models.append(done.final_model(done.ids[0]))
        counts.append({(report.accepted, 3 * report.sent // 4) for report in rounds})
        assert {report.acceptance_rate for report in evaluations} == {None if rule == "silent" else 0.75}
    np.testing.assert_array_equal(*models)
    assert {accepted for accepted, _ in counts[0]} == {None}
    assert all(accepted == expected for accepted, expected in counts[1])


def test_a_checkpoint_keeps_that_the_acceptance_is_unknown():
    before, after = Acceptance(), Acceptance()
    before.add(Tally(received=4, sent=4, accepted=3, accepted_sent=3))
    before.add(Tally(received=4, sent=4, accepted=None, accepted_sent=None))
    before.fields()
    before.add(Tally(received=4, sent=4, accepted=1, accepted_sent=1))
    after.restore(State(facts=json.loads(json.dumps(before.state().facts))))
    fields = after.fields()
    assert fields["acceptance_rate_cumulative"] is fields["acceptance_rate_sent_cumulative"] is None
    assert fields["acceptance_rate_epoch"] == fields["acceptance_rate_sent_epoch"] == 0.25


def rules(text):
    plugin = load(text, Path("dropping.py"))
    return {entry.name: entry.component for entry in plugin.entries}


@pytest.mark.parametrize("sees", ["vector", "block", "coordinate"])
def test_pre_aggregators_and_parts_keep_that_the_acceptance_is_unknown(sees):
    found = rules(PLUGIN.replace("    kind:", f'    sees = "{sees}"\n    kind:'))
    layout, rows = Layout.of_sizes((2, 3), 5), np.arange(20, dtype=np.float32).reshape(4, 5)
    for kind in ("silent", "stating"):
        for before in ((), (Nnm(f=1),)):
            combined, _ = combine_finite(found[kind](before=before), Updates.of(rows, layout))
            assert combined.acceptance_known == (kind == "stating")


def test_a_result_that_is_not_finite_is_known_to_have_no_update_in_it():
    silent = rules(PLUGIN.replace("/ max(1, len(updates) - 1)", "+ np.float32(np.inf)"))["silent"]
    combined, _ = combine_finite(silent(), Updates.of(np.ones((3, 2), np.float32), Layout.of_sizes((2,), 2)))
    assert combined.acceptance_known
    assert not combined.accepted.any()
