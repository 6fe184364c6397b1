"""Rules that cluster updates, or compare the sums of the updates of all rounds."""

from pathlib import Path

import numpy as np
import pytest
import transcriptions
from sklearn.cluster import MeanShift
from small_experiment import small_experiment

import hpcps.rules.clustering
from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.rules import Average, Flame, FoolsGold, Lasa, Rule, SignGuard, combine_finite
from hpcps.rules.clustering import largest_cluster
from hpcps.rules.context import Arrays, Context
from hpcps.spec.load import load_experiment


def context() -> Context:
    return Context(random=np.random.default_rng(0), state=Arrays())


def honest(n: int, size: int = 400, seed: int = 0) -> np.ndarray:
    return (0.5 + 0.3 * np.random.default_rng(seed).standard_normal((n, size))).astype(np.float32)


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_cluster_is_that_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 15))
    points = rng.dirichlet((3, 1, 2), n)
    points[: n // 3] = rng.dirichlet((1, 5, 1), n // 3)
    bandwidth = np.sort(np.linalg.norm(points[:, None] - points, axis=2), axis=1)[:, n // 2].mean()
    labels = MeanShift(bandwidth=bandwidth).fit_predict(points)
    counts, found = np.bincount(labels), largest_cluster(points)
    if np.array_equal(found, largest_cluster(points[::-1])[::-1]) and (counts == counts.max()).sum() == 1:
        assert np.array_equal(found, labels == counts.argmax())  # otherwise their order decides between equal modes


@pytest.mark.parametrize("n", [2, 3, 8, 13])
def test_flame_averages_the_cluster_of_its_definition(n: int) -> None:
    for seed in range(10):
        rows = np.random.default_rng(seed).standard_normal((n, 6)).astype(np.float32)
        found, _ = combine_finite(Flame(), Updates.of(rows, Layout.of_sizes((6,), 6)), context())
        wide = rows.astype(np.float64)
        transcriptions.flame(Flame(), wide, wide[0], found.accepted[:, 0], found.update.astype(np.float64), False)


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_points_that_are_equal_are_one_cluster(n: int) -> None:
    assert largest_cluster(np.full((n, 3), 1 / 3)).all()


@pytest.mark.parametrize("rule", [SignGuard(share=1.0), Flame(), Lasa(), FoolsGold()], ids=lambda rule: rule.kind)
@pytest.mark.parametrize("what", ["zeros", "one zero", "most zero", "huge", "denormal", "equal", "one", "two", "nan"])
def test_unusual_updates_give_a_finite_result(rule: Rule, what: str) -> None:
    rows = honest(7)
    if what == "zeros":
        rows[:] = 0
    elif what == "one zero":
        rows[2] = 0
    elif what == "most zero":
        rows[:5] = 0
    elif what == "huge":
        rows[2] = np.finfo(np.float32).max
    elif what == "denormal":
        rows[:] = 1e-45
    elif what == "equal":
        rows[:] = rows[0]
    elif what == "nan":
        rows[1, 3], rows[2, 5] = np.nan, np.inf
    else:
        rows = rows[: {"one": 1, "two": 2}[what]]
    layout, given = Layout.of_sizes((100, 300), 400), context()
    for _ in range(3):
        found, refused = combine_finite(rule, Updates.of(rows, layout), given)
        assert np.isfinite(found.update).all()
        assert refused.any() == (what == "nan")
        if what == "zeros":
            assert not found.update.any()
        elif what not in ("equal", "most zero", "denormal"):
            assert found.update.any()
        assert np.abs(found.update).max() <= np.abs(np.nan_to_num(rows, posinf=0).astype(np.float64)).max() * 1.01
        if what == "one":
            np.testing.assert_allclose(found.update, rows[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("rule", [SignGuard(), Flame(), Lasa(sparsity=0.5)], ids=lambda rule: rule.kind)
def test_reversed_and_huge_updates_do_not_enter(rule: Rule) -> None:
    rows = honest(10)
    rows[3] *= -1
    rows[7] = -100 * rows[7]
    found, _ = combine_finite(rule, Updates.of(rows, Layout.of_sizes((400,), 400)), context())
    assert found.accepted.any()
    assert not found.accepted[[3, 7]].any()


def test_sybils_count_less_over_the_rounds() -> None:
    """Ten workers: those of 0 to 2 send the same direction with noise that hides it in each round alone."""
    size, weights = 2000, {}
    layout, rng = Layout.of_sizes((size,), size), np.random.default_rng(4)
    aim, shards = rng.standard_normal(size), rng.standard_normal((10, size))
    shards[:3] = aim
    for memory in ("run", "round"):
        given, sums = context(), np.zeros((10, size))
        for _ in range(60):
            rows = (shards + 6 * rng.standard_normal((10, size))).astype(np.float32)
            sums += rows
            found, _ = combine_finite(FoolsGold(memory=memory), Updates.of(rows, layout), given)
        history = sums if memory == "run" else rows.astype(np.float64)
        want = transcriptions.foolsgold_weights(FoolsGold(), history)
        np.testing.assert_allclose(found.update, want @ rows / want.sum(), rtol=1e-4, atol=1e-4)
        weights[memory] = want
    assert weights["run"][:3].max() < 0.2 < 0.9 < weights["run"][3:].min()
    assert weights["round"][:3].min() > 0.9


def test_histories_begin_again_when_the_number_of_workers_changes() -> None:
    rows, given, layout = honest(5), context(), Layout.of_sizes((400,), 400)
    combine_finite(FoolsGold(), Updates.of(-3 * rows, layout), given)
    fewer = combine_finite(FoolsGold(), Updates.of(rows[:4], layout), given)[0].update
    assert np.array_equal(fewer, combine_finite(FoolsGold(), Updates.of(rows[:4], layout), context())[0].update)
    assert np.array_equal(given.state["history"], rows[:4])


def test_flame_says_which_package_is_missing(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(hpcps.rules.clustering, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"flame needs the package scikit-learn.*hpcps\[flame\]"):
        Flame()(honest(5))
    assert Average().obstacle() == ""
    (tmp_path / "small.toml").write_text(small_experiment("small", tables='[validation]\nrule = { kind = "flame" }\n'))
    with pytest.raises(SpecError, match=r"validation.rule: flame needs the package scikit-learn"):
        load_experiment(tmp_path / "small.toml")


BUFFERED = {"train.mode": "async", "asynchronous.buffer": 3, "topology.validators": 0}


@pytest.mark.parametrize(
    ("keys", "before", "why"),
    [
        ({"train.quorum": 3}, "", "a round with a quorum lacks some"),
        ({"transport.kind": "pslite", "survive.workers": True}, "", "a round lacks those of lost workers"),
        ({"communication.participation": 0.5}, "", "workers do not take part in every round"),
        (BUFFERED, "", "a buffer has those of any workers"),
        ({}, 'before = [{ kind = "bucketing" }], ', "the pre-aggregator before it makes other rows of them"),
        ({}, 'before = [{ kind = "foundation" }], ', "the pre-aggregator before it makes other rows of them"),
    ],
    ids=["a quorum", "losses", "participation", "a buffer", "bucketing", "foundation"],
)
def test_histories_need_the_same_workers_in_each_round(tmp_path, keys, before, why) -> None:
    path = tmp_path / "small.toml"

    def written(memory: str) -> Path:
        table = f'[validation]\nrule = {{ kind = "foolsgold", {before}memory = "{memory}" }}\n'
        path.write_text(small_experiment("small", {"topology.workers": 4, **keys}, table))
        return path

    with pytest.raises(SpecError, match=f'foolsgold adds up the updates of each worker, and {why}: use memory = "r'):
        load_experiment(written("run"))
    load_experiment(written("round"))


def test_histories_of_rows_that_stay_in_their_places_are_allowed(tmp_path) -> None:
    path = tmp_path / "small.toml"
    table = '[validation]\nrule = { kind = "foolsgold", before = [{ kind = "clipping" }] }\n'
    path.write_text(small_experiment("small", {"topology.workers": 4}, table))
    load_experiment(path)
