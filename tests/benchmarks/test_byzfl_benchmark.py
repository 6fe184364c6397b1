"""ByzFL's benchmark: its split, its results and its page; and both libraries on the same full batches."""

import sys
from itertools import product

import byzfl_benchmark
import byzfl_report
import numpy as np
import pytest
from byzfl_results import Results, Training
from byzfl_split import HonestGamma
from byzfl_study import ATTACKS, BYZANTINE, GAMMAS, RULES, Cell, Settings, cells, searched_cells
from processes import ROOT, MeasurementError, NotHereError

import hpcps
from hpcps.data.splits import Dealing
from hpcps.errors import SpecError

RATES = dict.fromkeys(RULES, 0.1)


def both(byzfl, ours):
    return {"byzfl": Training(byzfl, 2.0, 1.0, 300.0), "hpcps": Training(ours, 2.0, 1.5, 200.0)}


@pytest.mark.parametrize("gamma", GAMMAS)
def test_honest_shards_have_all_samples_but_a_batch_of_each_other_one(gamma):
    labels = np.repeat(np.arange(10), 40)
    dealing = Dealing(labels, 14, 28, np.random.default_rng(1), 0.5, least=25)
    honest = (0, 1, 3, 4, 5, 6, 7, 9, 10, 12)
    shards = HonestGamma(gamma=gamma, honest=honest).deal(dealing)
    assert [len(shards[other]) for other in (2, 8, 11, 13)] == [25] * 4
    assert {len(shards[each]) for each in honest} <= {29, 30, 31}
    assert sorted(np.concatenate(shards)) == [*range(400)]
    classes = [len(np.unique(labels[shards[each]])) for each in honest]
    assert max(classes) <= 3 if gamma == 0 else min(classes) >= 4


def test_a_killed_study_goes_on_and_other_settings_are_refused(tmp_path):
    file, first = tmp_path / "byzfl.jsonl", next(searched_cells())
    Results.begin(file, Settings(steps=12)).add(first, both(0.5, 0.6))
    with file.open("a") as stream:
        stream.write('{"cell": {"seed": 1')
    again = Results.begin(file, Settings(steps=12))
    assert again.found == {first: both(0.5, 0.6)}
    assert file.read_text().endswith("}\n")
    with pytest.raises(MeasurementError, match=r"has results of other settings \(data = digits, steps = 12"):
        Results.begin(file, Settings(steps=24))


def test_the_rate_with_the_best_worst_case_of_both_is_chosen(tmp_path):
    results = Results(tmp_path / "byzfl.jsonl", Settings())
    for cell in searched_cells():
        worst = cell.attack == ATTACKS[1]
        results.found[cell] = both(0.9 - 0.5 * worst * (cell.rate != 0.2), 0.9)
    assert results.rates() == dict.fromkeys(RULES, 0.2)


def test_unfinished_cells_are_not_published(tmp_path):
    results = Results(tmp_path / "byzfl.jsonl", Settings(), ["a machine"])
    for seed, gamma, attack in product((1, 2), (1.0, 0.0), ATTACKS):
        results.found[Cell(seed, RULES[0], 1, gamma, attack, 0.1)] = both(0.9, 0.9 + 0.02 * seed)
    del results.found[Cell(2, RULES[0], 1, 0.0, ATTACKS[2], 0.1)]
    byzfl_report.write(results, tmp_path)
    page = (tmp_path / "byzfl.md").read_text()
    assert f"| {RULES[0]} | 1 | 1 | 90.0 | 93.0 | +3.0 ± 1.4 | 2 |" in page
    assert f"| {RULES[0]} | 1 | 0 | 90.0 | 92.0 | +2.0 | 1 |" in page
    assert page.count(f"| {RULES[0]} |") == 2
    assert (tmp_path / f"byzfl_{RULES[0]}.png").exists()
    assert not (tmp_path / f"byzfl_{RULES[1]}.png").exists()


def test_the_published_page_is_that_of_the_published_results():
    folder = ROOT / "benchmarks/results"
    page = byzfl_report.page(Results.read(folder / "byzfl.jsonl"), list(RULES))
    assert (folder / "byzfl.md").read_text() == page


def test_cells_of_a_seed():
    assert len({*cells(RATES, [1])}) == byzfl_benchmark.CELLS == 2 * len(BYZANTINE) * len(GAMMAS) * 3


def test_without_byzfl_it_says_so(monkeypatch, tmp_path, capsys):
    def missing():
        raise NotHereError(".venv-byzfl cannot be made here: no network")

    monkeypatch.setattr(byzfl_benchmark, "environment", missing)
    monkeypatch.setattr(sys, "argv", ["byzfl_benchmark.py", "--output", str(tmp_path)])
    assert byzfl_benchmark.main() == 1
    assert ".venv-byzfl cannot be made here: no network" in capsys.readouterr().out


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.skipif(not (ROOT / ".venv-byzfl/.ready").exists(), reason="ByzFL is not installed in .venv-byzfl")
@pytest.mark.parametrize("rule", RULES)
def test_both_make_the_same_model_of_full_batches(rule):
    with byzfl_benchmark.pair_of(Settings(steps=2, limit=350)) as pair:  # 14 shards of one batch
        found = pair.train(Cell(1, rule, 2, 0.0, "ipm", 0.2))
    assert found["byzfl"].accuracy == found["hpcps"].accuracy
    assert pair.apart < 2e-5  # of changes of 0.01; weight decay enters before or after the rule


def test_steps_that_are_no_passes_are_one_sentence():
    with pytest.raises(SpecError, match="a pass over a shard of the search has 3 steps, and --steps 5 is no multiple"):
        Settings(steps=5).experiment(next(searched_cells()))


@pytest.mark.parametrize("f", BYZANTINE)
def test_the_experiments_of_all_cells_are_valid(f):
    """With the most Byzantine workers, every shard belongs to one."""
    for cell in (each for each in cells(RATES, [0]) if each.f == f):
        (point,) = hpcps.load(Settings(steps=60).experiment(cell)).points
        assert point.run.topology.workers == 10 + f
