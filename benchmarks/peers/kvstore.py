"""`python kvstore.py FOLDER RANK RANKS`: push and pull of MXNet's dist_sync KVStore. DMLC_ROLE says which node."""

import sys
from pathlib import Path

import mxnet as mx
from rounds import take_rounds


class KVStore:
    """A push, which the servers sum up, and a pull of the sum."""

    def __init__(self, store, key, elements):
        self._store, self._key = store, key
        self._array = mx.nd.zeros(elements)
        store.init(key, self._array)
        self._array.wait_to_read()

    @property
    def buffer(self):
        """The array; MXNet has no numpy view of it, so this class has the methods that `take_rounds` needs."""
        return self

    @property
    def size(self):
        """Its elements."""
        return self._array.size

    def fill(self, value):
        """Fill it."""
        self._array[:] = value
        self._array.wait_to_read()

    def __getitem__(self, slice_):
        return self._array[slice_].asnumpy()

    def __eq__(self, value):
        return self._array.asnumpy() == value

    def run(self):
        """See `Exchange.run`."""
        self._store.push(self._key, self._array)
        self._store.pull(self._key, out=self._array)
        self._array.wait_to_read()


def main():
    folder, ranks = Path(sys.argv[1]), int(sys.argv[3])
    store = mx.kv.create("dist_sync")
    keys = iter(range(1000))
    take_rounds(folder, store.rank, ranks, lambda elements: KVStore(store, next(keys), elements))


if __name__ == "__main__":
    main()
