"""The statistics by which samples of an own data set are normalised, against numpy's of all samples."""

from typing import ClassVar, Literal

import numpy as np
import pytest

from hpcps.data import Data, Facts, InMemory, Samples
from hpcps.data.batches import Normaliser
from hpcps.data.sets import Digits
from hpcps.data.statistics import normalised_facts

VALUES = np.random.default_rng(3).normal([1e4, -5, 0], [3, 1e-3, 7], (1500, 4, 3)).transpose(0, 2, 1)
BYTES = np.random.default_rng(4).integers(0, 200, (1500, 3, 4)).astype(np.uint8)


class Own(Data):
    """Three channels of four values."""

    name: Literal["own"] = "own"
    floats: bool = True
    facts: ClassVar[Facts] = Facts(shape=(3, 4), classes=2, train=1500, test=1500)

    def open(self):
        images = VALUES.astype(np.float32) if self.floats else BYTES
        part = InMemory(Samples(images, np.arange(1500) % 2))
        return part, part


@pytest.mark.parametrize(("floats", "limit"), [(True, None), (False, None), (True, 1100)])
def test_the_samples_in_use_have_mean_0_and_deviation_1(floats, limit):
    data = Own(floats=floats, limit=limit)
    train, _ = data.open()
    facts = normalised_facts(data, train)
    known = train.samples.images[:limit].astype(np.float64) / (1 if floats else 255)
    assert facts.mean == pytest.approx(known.mean(axis=(0, 2)), rel=1e-5)
    assert facts.std == pytest.approx(known.std(axis=(0, 2)), rel=1e-4)
    if not floats:
        normal = Normaliser(facts)(train.samples.images)
        assert normal.mean(axis=(0, 2)) == pytest.approx(0, abs=1e-4)
        assert normal.std(axis=(0, 2)) == pytest.approx(1, abs=1e-4)


def test_statistics_that_are_stated_or_switched_off_are_not_computed():
    data = Own(normalise=False)
    assert normalised_facts(data, data.open()[0]).mean == (0.0,)
    stated = Facts(shape=(3, 4), train=9, test=9, std=(2.0,))
    assert not stated.measured
    assert not Facts(shape=(9,), train=9, test=9, targets=9).measured, "the codes of a text are no amounts"
    assert not Digits(name="digits").facts.measured


def test_a_channel_without_deviation_is_not_divided():
    data = Own()
    train = InMemory(Samples(np.ones((1500, 3, 4), np.float32), np.zeros(1500, np.int64)))
    facts = normalised_facts(data, train)
    assert (facts.mean, facts.std) == ((1.0,) * 3, (1.0,) * 3)
