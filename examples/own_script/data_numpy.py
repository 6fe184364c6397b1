"""The digits of scikit-learn as arrays of numpy, for scripts without PyTorch: what data.py has for those with it."""

import numpy as np
from sklearn.datasets import load_digits


def digits(rank, size):
    """Return the samples and labels of one process, and those of the test set."""
    found = load_digits()
    x, y = found.data.astype(np.float32) / 16, found.target
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[:360], order[360:]
    mine = train[rank : len(train) - len(train) % size : size]  # the same number of samples for every process
    return x[mine], y[mine], x[test], y[test]


def batches(x, y, epoch, size=32):
    """Yield the batches of an epoch, in random order; the rest, with fewer samples than a batch, is left out."""
    order = np.random.default_rng(epoch).permutation(len(x))
    for start in range(0, len(x) - size + 1, size):
        part = order[start : start + size]
        yield x[part], y[part]
