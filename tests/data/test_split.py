from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opened import Opened, shard_indices, steps_per_epoch
from training_examples import make_run

import hpcps
from hpcps.data.sets import Synthetic
from hpcps.data.shards import all_shards
from hpcps.data.splits import Dealing, Dirichlet, GammaSimilarity, LogNormal, Pathological
from hpcps.errors import SpecError
from hpcps.spec.identity import run_id
from hpcps.spec.warnings import warnings_of_run
from hpcps.training.build import build_trainer

DIGITS = Opened(make_run({"name": "digits"}).data)


KINDS = [
    *("iid", "by_class", "dirichlet"),
    {"kind": "dirichlet", "draws": "per_class"},
    {"kind": "pathological", "classes": 3},
    {"kind": "gamma_similarity", "gamma": 0.3},
    {"kind": "log_normal", "sigma": 0.5},
]


def test_every_split_is_tested_here():
    assert {kind if isinstance(kind, str) else kind["kind"] for kind in KINDS} == set(hpcps.registry.splits)


@settings(deadline=None, derandomize=True)
@example(split=KINDS[3], workers=13, limit=None, seed=0, alpha=0.002, validation_split="iid")
@given(
    split=st.sampled_from(KINDS),
    workers=st.integers(1, 20),
    limit=st.one_of(st.none(), st.integers(400, 2000)),
    seed=st.integers(0, 2**32),
    alpha=st.floats(0.001, 100),
    validation_split=st.sampled_from(["iid", "as_workers"]),
)
def test_shards_share_no_sample_and_are_equal_unless_the_split_says_otherwise(
    split, workers, limit, seed, alpha, validation_split
):
    data = {"name": "digits", "split": split, "limit": limit, "alpha": alpha, "validation_split": validation_split}
    run = make_run(data, workers=workers, seed=seed)
    used = min(limit or 1437, 1437)
    size = used // (workers + 1)
    try:
        shards = all_shards(run.data, size, seed, DIGITS.train.labels, held_out=run.holds_out)
    except SpecError:  # for example, 10 classes cannot fill 13 shards if each class is in one shard
        assert run.data.split == Dirichlet(draws="per_class")
        return
    assert len(shards) == workers + 1
    if run.data.split.equal:
        assert {len(shard) for shard in shards} == {size}
    elif run.holds_out:
        assert len(shards[-1]) == size
    together = np.concatenate(shards)
    assert size * (workers + 1) <= len(together) <= used or run.data.split.equal
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


def test_dirichlet_per_class_is_that_of_byzfl_with_the_same_draws():
    """`dirichlet_niid_idx` of ByzFL, which does not shuffle: the shares of a class, cut at the cumulative sums."""
    labels = np.random.default_rng(4).integers(0, 5, 700)
    mine = Dirichlet(draws="per_class").deal(Dealing(labels, 6, 100, np.random.default_rng(8), 0.7))
    random = np.random.default_rng(8)
    members = [random.permutation(np.flatnonzero(labels == label)) for label in range(5)]
    sample = random.dirichlet(np.repeat(0.7, 6), size=5)
    theirs = [
        np.split(places, (np.cumsum(share)[:-1] * len(places)).astype(int))
        for places, share in zip(members, sample, strict=True)
    ]
    for worker in range(6):
        assert mine[worker].tolist() == sorted(np.concatenate([parts[worker] for parts in theirs]).tolist())
    assert sum(map(len, mine)) == 700, "all samples are used"


def test_dirichlet_per_class_draws_again_until_every_shard_fills_a_batch():
    labels = np.repeat(np.arange(10), 100)

    def smallest(**least):
        dealing = Dealing(labels, 8, 125, np.random.default_rng(5), 0.2, **least)
        return min(map(len, Dirichlet(draws="per_class").deal(dealing)))

    assert smallest() == smallest(least=46) == 46
    assert smallest(least=47) >= 47


def test_a_file_without_draws_means_what_it_did_and_keeps_its_run_id():
    runs = [
        make_run({"name": "digits", "split": split}, workers=8)
        for split in (
            "dirichlet",
            {"kind": "dirichlet", "draws": "per_worker"},
            {"kind": "dirichlet", "draws": "per_class"},
        )
    ]
    assert [run_id(run) for run in runs[:2]] == ["41e3894bf0", "41e3894bf0"]  # before there was `draws`
    assert run_id(runs[2]) != run_id(runs[0])
    assert shard_indices(runs[0], 3, DIGITS.train.labels)[:8].tolist() == [2, 4, 15, 16, 22, 38, 61, 63]


def test_pathological_shards_have_s_random_pieces_of_the_sorted_samples():
    """The scheme of McMahan et al.: 100 clients, 200 pieces; pieces of one class give two classes to a client."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
    shards = Pathological().deal(Dealing(labels, 100, 60, np.random.default_rng(2), 0.5))
    order = np.argsort(labels, kind="stable")
    pieces = {tuple(piece): number for number, piece in enumerate(order.reshape(200, 30).tolist())}
    owned = [sorted(pieces[tuple(half)] for half in shard.reshape(2, 30).tolist()) for shard in shards]
    assert sorted(number for both in owned for number in both) == list(range(200))
    assert {len(np.unique(labels[shard])) for shard in shards} == {1, 2}
    assert len({b - a for a, b in owned}) > 20, "at random"


@pytest.mark.parametrize("classes", [1, 3, 7, 200])
def test_pathological_pieces_need_not_divide_a_shard(classes):
    labels = np.random.default_rng(1).integers(0, 10, 1000)
    shards = Pathological(classes=classes).deal(Dealing(labels, 9, 110, np.random.default_rng(2), 0.5))
    assert sorted(shards.ravel().tolist()) == sorted(np.argsort(labels, kind="stable")[:990].tolist())
    if classes == 1:
        order = np.argsort(labels, kind="stable")[:990].reshape(9, 110).tolist()
        assert sorted(shards.tolist()) == sorted(order)


def test_gamma_is_the_uniform_share_of_a_shard():
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 100))

    def shards(gamma):
        return GammaSimilarity(gamma=gamma).deal(Dealing(labels, 10, 100, np.random.default_rng(3), 0.5))

    assert [len(np.unique(labels[shard])) for shard in shards(0.0)] == [1] * 10
    counts = [np.bincount(labels[shard], minlength=10) for shard in shards(1.0)]
    assert 1 <= np.min(counts) <= np.max(counts) < 25
    order = np.random.default_rng(3).permutation(1000)
    rest = sorted(order[290:].tolist(), key=lambda i: (labels[i], i))
    for k, shard in enumerate(shards(0.29)):
        assert shard[:29].tolist() == order[k * 29 : (k + 1) * 29].tolist()
        assert shard[29:].tolist() == rest[k * 71 : (k + 1) * 71]


def test_log_normal_sizes_are_the_drawn_shares_of_all_samples():
    labels = np.zeros(1000, np.int64)
    sizes = [len(s) for s in LogNormal(sigma=1.0).deal(Dealing(labels, 10, 100, np.random.default_rng(6), 0.5))]
    drawn = np.random.default_rng(6).lognormal(0, 1, 10)
    assert sum(sizes) == 1000
    assert np.abs(sizes - 1000 * drawn / drawn.sum()).max() <= 1
    assert max(sizes) > 4 * min(sizes)
    equal = LogNormal(sigma=0.0).deal(Dealing(labels, 10, 100, np.random.default_rng(6), 0.5))
    assert {len(shard) for shard in equal} == {100}


def test_shards_of_different_sizes_have_equal_epochs():
    run = make_run({"name": "digits", "split": {"kind": "log_normal", "sigma": 0.8}}, workers=4, seed=3)
    workers = [build_trainer(run, "worker", k) for k in range(4)]
    assert {worker.steps_per_epoch for worker in workers} == {steps_per_epoch(run)}
    passes = {worker._stream.batches_per_pass for worker in workers}
    assert passes == {7, 18, 38}


def test_a_shard_of_an_uneven_split_that_is_smaller_than_a_batch_is_refused():
    run = make_run({"name": "digits", "split": {"kind": "log_normal", "sigma": 4.0}}, workers=8)
    text = r"shard \d of digits has \d+ samples under data.split = log_normal with seed 1, fewer than a batch"
    with pytest.raises(SpecError, match=text):
        build_trainer(run, "worker", 0)
    with pytest.raises(SpecError, match=text):
        list(warnings_of_run(run))


def test_check_says_which_classes_a_pathological_shard_lacks():
    run = make_run({"name": "digits", "split": "pathological"}, workers=8)
    assert "8 of 8 workers lack classes; worker" in " ".join(problem.message for problem in warnings_of_run(run))


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
