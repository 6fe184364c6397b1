"""A run in which the rule accepts no update in most rounds says so: it is stalled."""

import re

import numpy as np
import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.acceptance import FIELDS, RoundCounts, RunAcceptance

FILE = small_experiment(
    "absurd",
    {"data.limit": 192, "train.epochs": 1, "train.batch_size": 16, "train.local_steps": 4, "train.optimizer.lr": 1e38},
    """
[[include]]
label = "without validators"
"topology.validators" = 0
[[include]]
label = "asynchronous"
"train.mode" = "async"
"validation.rule" = { kind = "zeno++" }
[[include]]
label = "usual"
"train.optimizer.lr" = 0.01
[[include]]
label = "usual, asynchronous"
"train.optimizer.lr" = 0.01
"train.mode" = "async"
"validation.rule" = { kind = "naive_async" }
""",
)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "absurd.toml").write_text(FILE)
    assert main(["run", "absurd.toml"]) == 0
    return capsys.readouterr().out


def lines_with(text, output):
    return [line for line in output.splitlines() if text in line]


@pytest.mark.thorough
def test_status_collect_and_the_table_say_that_the_runs_stalled(run, tmp_path, capsys):
    assert len(lines_with("stalled", run)) == 3
    assert not lines_with("usual", "\n".join(lines_with("stalled", run)))
    assert main(["status", "absurd"]) == 0
    shown = lines_with("done, stalled", capsys.readouterr().out)
    assert len(shown) == 3
    assert not lines_with("usual", "\n".join(shown))
    assert main(["collect", "absurd.toml"]) == 0
    shown = lines_with("stalled: the rule accepted no update in ", capsys.readouterr().out)
    assert len(shown) == 3, shown
    assert all(re.search(r" in (\d+) of \1 rounds$", line) for line in shown), shown
    assert not lines_with("usual", "\n".join(shown))
    table = (tmp_path / "results/absurd/final_accuracy.md").read_text()
    assert "‡ stalled: in most rounds the rule accepted no update" in table
    assert all("‡" not in line for line in lines_with("usual", table))


def pairs(workers=0, **columns):
    """Return the counts of rounds: lines with `position`, `applied` and others; each received an update of one pair."""
    given = {name: np.array(values, float) for name, values in columns.items()}
    count, position = len(given["position"]), given["position"]
    lines = dict.fromkeys(FIELDS, np.ones(count)) | {
        "time": position,
        "round": position,
        "received_pairs": given.get("received", np.ones(count)),
        "accepted_sent_pairs": given["applied"],
        "turned_pairs": np.zeros(count),
    }
    return RoundCounts(lines, workers)


def test_most_rounds_are_more_than_half_of_those_with_updates():
    half = pairs(position=[0, 1, 2, 3], applied=[1, 0, 1, 0]).acceptance(9)
    assert (half.rounds, half.empty, half.stalled, half.rate) == (4, 2, False, 0.5)
    assert pairs(position=[0, 1, 2], applied=[1, 0, 0]).acceptance(9).stalled
    # A round without updates says nothing of the rule.
    quiet = pairs(position=[0, 1, 2], applied=[1, 0, 0], received=[1, 0, 0])
    assert quiet.acceptance(9).rounds == 1
    assert not RunAcceptance().stalled


def test_a_round_is_empty_if_all_validators_accept_nothing():
    found = pairs(position=[0, 1, 2, 0, 1, 2], applied=[0, 1, 0, 0, 0, 0]).acceptance(2)
    assert (found.rounds, found.empty, found.sent, found.accepted) == (2, 1, 4, 1)


def test_a_round_whose_accepted_pairs_are_unknown_is_not_empty():
    unknown = pairs(position=[0, 1, 2], applied=[np.nan, np.nan, np.nan]).acceptance(9)
    assert unknown == RunAcceptance(sent=3, accepted=None, rounds=3, empty=0)
    assert (unknown.rate, unknown.stalled) == (None, False)
    one_of_two_validators = pairs(position=[0, 1, 0, 1], applied=[0, 0, np.nan, 0]).acceptance(2)
    assert one_of_two_validators == RunAcceptance(sent=4, accepted=None, rounds=2, empty=1)
    # The latest evaluation counts only the rounds before it.
    assert pairs(position=[0, 1], applied=[1, np.nan]).acceptance(1).rate == 1


def test_as_many_updates_as_workers_are_a_round_of_an_asynchronous_run():
    """One of four workers is accepted: most updates are rejected, but no round is empty."""
    assert not pairs(4, position=range(12), applied=[0, 0, 0, 1] * 3).acceptance(99).stalled
    assert pairs(4, position=range(12), applied=[1, 1, 1, 1] + [0] * 8).acceptance(99).empty == 2


def test_a_line_without_pairs_knows_that_none_was_accepted():
    """A combiner whose rule does not state what it accepts has lines without updates, too."""
    found = pairs(position=[0, 1, 2], applied=[1, 0, np.nan], received=[1, 1, 0])
    assert found.acceptance(9) == RunAcceptance(sent=3, accepted=1, rounds=2, empty=1)
    rounds, empty = found.before(np.array([0, 1, 2, 9]))
    assert (rounds.tolist(), empty.tolist()) == ([0, 1, 2, 2], [0, 0, 1, 1])
