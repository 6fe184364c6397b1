from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened import Opened, shard_indices, steps_per_epoch
from training_examples import make_run

from hpcps.data.sets import Synthetic
from hpcps.data.shards import shard_of
from hpcps.data.splits import Dealing, Dirichlet
from hpcps.errors import SpecError

DIGITS = Opened(make_run({"name": "digits"}).data)


@given(
    split=st.sampled_from(["iid", "by_class", "dirichlet"]),
    workers=st.integers(1, 20),
    limit=st.one_of(st.none(), st.integers(400, 2000)),
    seed=st.integers(0, 2**32),
    alpha=st.floats(0.001, 100),
    validation_split=st.sampled_from(["iid", "as_workers"]),
)
def test_shards_are_equal_and_share_no_sample(split, workers, limit, seed, alpha, validation_split):
    data = {"name": "digits", "split": split, "limit": limit, "alpha": alpha, "validation_split": validation_split}
    run = make_run(data, workers=workers, seed=seed)
    used = min(limit or 1437, 1437)
    shards = [shard_indices(run, k, DIGITS.train.labels) for k in range(workers + 1)]
    assert {len(shard) for shard in shards} == {used // (workers + 1)}
    together = np.concatenate(shards)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < used


def test_iid_is_contiguous_in_file_order():
    run = make_run({"name": "cifar10"}, workers=16, batch_size=32)
    assert shard_indices(run, 3, DIGITS.train.labels).tolist() == list(range(3 * 2941, 4 * 2941))
    assert steps_per_epoch(run) == 91  # systems/zenops.md
    assert steps_per_epoch(make_run({"name": "cifar10"}, workers=8, batch_size=64)) == 86
    assert steps_per_epoch(make_run({"name": "cifar10"}, workers=16, batch_size=32, passes_per_epoch=16)) == 16 * 91


def test_by_class_sorts_stably_before_the_same_cut():
    run = make_run({"name": "digits", "split": "by_class", "validation_split": "as_workers"}, workers=8)
    labels = DIGITS.train.labels()
    order = sorted(range(1437), key=lambda i: (labels[i], i))
    for shard in (2, 8):
        assert shard_indices(run, shard, lambda: labels).tolist() == order[shard * 159 : (shard + 1) * 159]


def test_by_class_sorts_what_is_not_held_out():
    run = make_run({"name": "digits", "split": "by_class"}, workers=8)
    labels = DIGITS.train.labels()
    held_out = set(shard_indices(run, 8, lambda: labels).tolist())
    order = sorted(set(range(1437)) - held_out, key=lambda i: (labels[i], i))
    for shard in (0, 2, 7):
        assert shard_indices(run, shard, lambda: labels).tolist() == order[shard * 159 : (shard + 1) * 159]


@pytest.mark.parametrize("split", ["by_class", "dirichlet"])
def test_the_held_out_shard_is_a_uniform_sample_whatever_the_split(split):
    by_class = np.repeat(np.arange(10), 5000)  # sorted: file order would say something of the class
    data = {"name": "cifar10", "split": split, "alpha": 0.01}
    shards = [make_run(data, workers=16, seed=seed) for seed in range(20)]
    counts = [np.bincount(by_class[shard_indices(run, 16, lambda: by_class)], minlength=10) for run in shards]
    assert {count.sum() for count in counts} == {2941}
    assert all(count.min() > 200 and count.max() < 400 for count in counts)  # 294 expected, standard deviation 16
    assert np.all(np.abs(np.mean(counts, axis=0) - 294.1) < 15)


def test_the_held_out_shard_depends_on_the_seed_and_not_on_the_split():
    held_out = {
        (split, seed): shard_indices(make_run({"name": "digits", "split": split}, seed=seed), 8, DIGITS.train.labels)
        for split in ("by_class", "dirichlet")
        for seed in (1, 2)
    }
    assert np.array_equal(held_out["by_class", 1], held_out["dirichlet", 1])
    assert not np.array_equal(held_out["by_class", 1], held_out["by_class", 2])


def test_validation_alone_trains_on_the_shard_that_was_held_out():
    together = make_run({"name": "digits", "split": "by_class"}, workers=8)
    alone = make_run({"name": "digits", "split": "by_class", "shards": 9}, workers=0)
    assert np.array_equal(*(shard_indices(run, 8, DIGITS.train.labels) for run in (together, alone)))


def test_where_every_shard_is_a_workers_none_is_held_out():
    labels = DIGITS.train.labels()
    run = make_run({"name": "digits", "split": "by_class", "shards": 8}, workers=8)
    order = sorted(range(1437), key=lambda i: (labels[i], i))
    assert shard_indices(run, 7, lambda: labels).tolist() == order[7 * 179 : 8 * 179]


def test_alpha_sets_how_uneven_the_mixtures_are():
    labels = np.repeat(np.arange(10), 1000)

    def largest_share(alpha):
        shards = Dirichlet().deal(Dealing(labels, 10, 1000, np.random.default_rng(3), alpha))
        return np.mean([max(Counter(labels[shard].tolist()).values()) / 1000 for shard in shards])

    assert largest_share(1000) < 0.13
    assert 0.25 < largest_share(0.5) < 0.6
    assert largest_share(0.001) > 0.5  # not 1: a class that two shards want runs out


def test_dirichlet_depends_on_the_experiment_and_not_on_who_asks():
    run, again, other = (make_run({"name": "digits", "split": "dirichlet"}, seed=seed) for seed in (1, 1, 2))
    mine = shard_indices(run, 4, DIGITS.train.labels)
    assert np.array_equal(mine, shard_indices(again, 4, DIGITS.train.labels))
    assert not np.array_equal(mine, shard_indices(other, 4, DIGITS.train.labels))


def test_limit_comes_before_the_cut():
    run = make_run({"name": "digits", "limit": 900, "split": "by_class"}, workers=8)
    assert len(shard_indices(run, 0, DIGITS.train.labels)) == 100
    assert max(shard_indices(run, k, DIGITS.train.labels).max() for k in range(9)) == 899


def test_worker_k_has_shard_k_and_validators_the_last():
    run = make_run({"name": "digits"}, workers=8)
    assert [shard_of(run.data, "worker", k) for k in (0, 7)] == [0, 7]
    assert [shard_of(run.data, "validator", k) for k in (0, 1)] == [8, 8]


def test_a_shard_smaller_than_a_batch_is_refused():
    run = make_run({"name": "digits", "limit": 100}, workers=8)
    with pytest.raises(SpecError, match=r"11 samples \(100 in 9 shards\), fewer than a batch of 16: use a smaller"):
        shard_indices(run, 0, DIGITS.train.labels)


def test_digits_are_cut_deterministically_and_without_loss():
    train, test = DIGITS.train.read(np.arange(1437)), DIGITS.read_test(None)
    assert train.images.shape == (1437, 1, 8, 8)
    assert test.images.shape == (360, 1, 8, 8)
    assert max(train.images.max(), test.images.max()) == 16
    assert np.bincount(np.concatenate([train.labels, test.labels])).tolist() == [
        *(178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
    ]
    # Golden: another cut would orphan every committed result.
    assert train.labels[:10].tolist() == [0, 4, 6, 9, 2, 0, 3, 5, 7, 1]
    assert DIGITS.read_test(5).images.shape == (5, 1, 8, 8)


def test_synthetic_is_the_same_whoever_asks_for_whatever_part():
    data = Opened(make_run({"name": "synthetic"}).data)
    few = data.train.read(np.array([7999, 3, 700]))
    many = data.train.read(np.arange(1000))
    assert np.array_equal(few.images[1:], many.images[[3, 700]])
    assert few.labels[1:].tolist() == many.labels[[3, 700]].tolist() == data.train.labels()[[3, 700]].tolist()
    assert len(data.train.labels()) == Synthetic.facts.train
    assert not np.array_equal(data.test.read(np.array([3])).images, few.images[1:2])
