from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hpcps import seeds
from hpcps.data.batches import BatchStream, Normaliser, StreamState, crop_and_flip, evaluation_slices, resized
from hpcps.data.samples import Samples
from hpcps.data.sets import Cifar10, FashionMnist

CIFAR = Cifar10.facts


def numbered(count):
    """Samples that can be told apart by their label."""
    images = np.random.default_rng(0).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return Samples(images, np.arange(count, dtype=np.int64))


START = StreamState()


def stream(count=50, *, batch=8, augment=False, state=START, seed=1, unit=None):
    generators = partial(seeds.generator, seed, "worker", 0)
    return BatchStream(numbered(count), batch, Normaliser(CIFAR), generators, augment=augment, state=state, unit=unit)


@given(count=st.integers(1, 60), batch=st.integers(1, 20))
def test_a_pass_gives_every_sample_at_most_once_and_full_batches_only(count, batch):
    if count < batch:
        return
    batches = list(islice(stream(count, batch=batch), 2 * (count // batch)))
    for one_pass in (batches[: count // batch], batches[count // batch :]):
        labels = np.concatenate([labels for _, labels in one_pass])
        assert {len(labels) for _, labels in one_pass} == {batch}
        assert len(np.unique(labels)) == len(labels)


def test_passes_differ_in_order_and_in_what_they_leave_out():
    batches = islice(stream(), 60)
    passes = np.array([labels for _, labels in batches]).reshape(10, 48)
    assert len({tuple(one_pass) for one_pass in passes}) == 10
    assert len({frozenset(one_pass) for one_pass in passes}) > 5


@pytest.mark.parametrize("unit", [None, 1])
def test_a_stream_goes_to_where_it_is_after_some_batches(unit):
    whole = stream(unit=unit)
    for number in range(15):
        other = stream(unit=unit)
        other.go_to(number)
        assert np.array_equal(next(other)[1], next(whole)[1]), number


@pytest.mark.parametrize("augment", [False, True])
def test_a_stream_is_reproducible_and_resumes_from_its_state(augment):
    whole, again = stream(augment=augment), stream(augment=augment)
    for number in range(20):
        state = whole.state
        images, labels = next(whole)
        assert np.array_equal(images, next(again)[0])
        resumed_images, resumed_labels = next(stream(augment=augment, state=state))
        assert np.array_equal(images, resumed_images), number
        assert np.array_equal(labels, resumed_labels)
    assert whole.state == StreamState(3, 2)
    assert not np.array_equal(next(stream(seed=2))[1], next(stream())[1])


@settings(deadline=None)
@given(count=st.integers(1, 12), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8), augment=st.booleans())
def test_batches_of_changing_sizes_use_no_sample_twice_in_a_pass(count, sizes, augment):
    """A batch that does not fit into what is left of a pass begins the next one, and one larger than that goes on."""
    varying, passes = stream(count, batch=1, unit=1, augment=augment), {}
    for size in sizes:
        state, before = varying.state, varying.state.passes
        varying.batch_size = size
        images, labels = next(varying)
        assert (len(images), len(labels)) == (size, size)
        for number in range(before, varying.state.passes + 1):
            passes.setdefault(number, [])
        first = before if state.position + min(size, count) <= count else before + 1
        for number, start in enumerate(range(0, size, count)):
            passes.setdefault(first + number, []).extend(labels[start : start + count])
        again = stream(count, batch=1, unit=1, augment=augment, state=state)
        again.batch_size = size
        assert np.array_equal(next(again)[0], images)
    for labels in passes.values():
        assert len({*labels}) == len(labels)


@settings(deadline=None)
@given(count=st.integers(8, 40), batches=st.integers(1, 8))
def test_positions_in_samples_give_the_same_batches(count, batches):
    usual, other = stream(count), stream(count, unit=1)
    for _ in range(batches):
        assert np.array_equal(next(usual)[0], next(other)[0])
    assert other.state == StreamState(usual.state.passes, 8 * usual.state.position)


def test_images_are_normalised_by_channel():
    images, labels = next(stream())
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    pixels = numbered(50).images[labels].astype(np.float64)
    mean, std = np.array(CIFAR.mean)[:, None, None], np.array(CIFAR.std)[:, None, None]
    np.testing.assert_allclose(images, (pixels / 255 - mean) / std, atol=2e-6)


def test_images_are_normalised_or_scaled_to_0_and_1():
    images = np.array([0, 51, 255], dtype=np.uint8).reshape(3, 1, 1, 1)
    assert Normaliser(FashionMnist(normalise=False).input_facts)(images).ravel() == pytest.approx([0, 0.2, 1])
    expected = (np.array([0, 0.2, 1]) - 0.286) / 0.353
    assert Normaliser(FashionMnist().input_facts)(images).ravel() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("old", "new"), [((28, 28), (224, 224)), ((28, 30), (31, 57)), ((1, 1), (4, 4)), ((8, 8), (8, 9))], ids=str
)
def test_images_are_enlarged_as_torch_does_it(old, new):
    images = np.random.default_rng(1).standard_normal((3, 2, *old)).astype(np.float32)
    expected = functional.interpolate(torch.from_numpy(images), size=new, mode="bilinear", align_corners=False)
    found = resized(images, *new)
    assert (found.dtype, found.shape) == (np.float32, (3, 2, *new))
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)


def test_every_batch_is_enlarged_after_augmentation_and_normalisation():
    generators, size = partial(seeds.generator, 1, "worker", 0), 40
    usual = Normaliser(CIFAR)
    larger = Normaliser(Cifar10(resize=size).input_facts, size)
    assert larger.shape == (3, size, size)
    one, other = (BatchStream(numbered(20), 4, each, generators, augment=True) for each in (usual, larger))
    for (images, _), (enlarged, _) in ((next(one), next(other)), (one.draw(3), other.draw(3))):
        assert np.array_equal(enlarged, resized(images, size, size))
    for (images, _), (enlarged, _) in zip(one.sweep(), other.sweep(), strict=True):
        assert np.array_equal(enlarged, resized(images, size, size))


def test_an_evaluation_has_smaller_batches_of_larger_images():
    def sizes(shape):
        return [len(range(600)[here]) for here in evaluation_slices(600, shape)]

    assert sizes((3, 32, 32)) == sizes((20,)) == [250, 250, 100]
    assert sizes((1, 224, 224))[:2] == [20, 20]
    assert sum(sizes((1, 299, 299))) == 600
    assert set(sizes((3, 4096, 4096))) == {1}


@given(seed=st.integers(0, 1000))
def test_crop_and_flip_against_a_plain_loop(seed):
    generator = np.random.default_rng(seed)
    images = numbered(5).images
    rows, columns = generator.integers(0, 9, (2, 5))
    mirrored = generator.random(5) < 0.5
    result = crop_and_flip(images, rows, columns, mirrored)
    for i in range(5):
        padded = np.pad(images[i], ((0, 0), (4, 4), (4, 4)))
        expected = padded[:, rows[i] : rows[i] + 32, columns[i] : columns[i] + 32]
        assert np.array_equal(result[i], expected[..., ::-1] if mirrored[i] else expected)


def test_augmentation_reaches_all_offsets_evenly_and_flips_half():
    """One lit pixel in the middle tells where the window was and whether it was flipped; black tells the padding."""
    images = np.zeros((4000, 3, 32, 32), dtype=np.uint8)
    images[:, 0, 16, 10] = 255
    generators = partial(seeds.generator, 1, "worker", 0)
    samples = Samples(images, np.zeros(4000, dtype=np.int64))
    batch, _ = next(BatchStream(samples, 4000, Normaliser(CIFAR), generators, augment=True))
    _, rows, columns = np.nonzero(batch[:, 0] > 1)
    mirrored = columns > 15  # 10 ± 4, or 31 − (10 ± 4)
    assert 1800 < mirrored.sum() < 2200
    offsets = np.stack([20 - rows, 14 - np.where(mirrored, 31 - columns, columns)])
    for axis in offsets:
        assert np.bincount(axis, minlength=9).min() > 350
        assert len(np.bincount(axis)) == 9
    assert abs(np.corrcoef(offsets)[0, 1]) < 0.1
    black = Normaliser(CIFAR)(np.zeros((1, 3, 1, 1), dtype=np.uint8))[0, :, 0, 0]
    assert np.array_equal(batch[:, :, 0, 0], np.broadcast_to(black, (4000, 3)))


def test_a_sweep_is_plain_always_alike_and_does_not_move_the_stream():
    one = stream(augment=True)
    next(one)
    state = one.state
    sweep = list(one.sweep())
    assert one.state == state
    assert len(sweep) == 6
    for images, labels in sweep:
        assert np.array_equal(images, Normaliser(CIFAR)(numbered(50).images[labels]))
    assert [labels.tolist() for _, labels in sweep] == [labels.tolist() for _, labels in stream().sweep()]
    assert sorted(np.concatenate([labels for _, labels in sweep])) != np.concatenate([y for _, y in sweep]).tolist()
