"""The digits of scikit-learn: the part of a process, and the test set."""

import torch
from sklearn.datasets import load_digits


def digits(rank, size):
    """Return the samples and labels of one process, and those of the test set."""
    found = load_digits()
    x = torch.tensor(found.data, dtype=torch.float32) / 16
    y = torch.tensor(found.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    mine = train[rank : len(train) - len(train) % size : size]  # the same number of samples for every process
    return x[mine], y[mine], x[test], y[test]


def batches(x, y, epoch, size=32):
    """Yield the batches of an epoch, in random order."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for part in order.split(size):
        yield x[part], y[part]
