"""One worker of benchmarks/pslite.py: `pslite_worker.py mxnet|hpcps BYTES KEYS ROUNDS FILE`; FILE gets its GB/s."""

import json
import sys
import time
from pathlib import Path


class Mxnet:
    """MXNet's C++ worker, through its Python interface."""

    def __init__(self, elements, keys):
        import mxnet as mx

        self._mx = mx
        self._kv = mx.kv.create("dist_sync")
        # Each key has its own array, so that a push or pull of one does not wait for the memory of another.
        self._arrays = [mx.nd.ones(elements) for _ in range(keys)]
        for key, array in enumerate(self._arrays):
            self._kv.init(key, array)
        mx.nd.waitall()

    def push(self):
        for key, array in enumerate(self._arrays):
            self._kv.push(key, array)
        self._mx.nd.waitall()

    def pull(self):
        for key, array in enumerate(self._arrays):
            self._kv.pull(key, out=array)
        self._mx.nd.waitall()

    def barrier(self):
        self._kv._barrier()

    def close(self):
        del self._kv


class Hpcps:
    """Our worker."""

    def __init__(self, elements, keys):
        import numpy as np

        from hpcps.kvstore import Client

        # There is one server, so values are not split, as with MXNET_KVSTORE_BIGARRAY_BOUND.
        self._kv = Client()
        self._arrays = [np.ones(elements, np.float32) for _ in range(keys)]
        for key, array in enumerate(self._arrays):
            self._kv.init(key, array)

    def push(self):
        for request in [self._kv.start_push(key, array) for key, array in enumerate(self._arrays)]:
            request.wait()

    def pull(self):
        for request in [self._kv.start_pull(key, array) for key, array in enumerate(self._arrays)]:
            request.wait()

    def barrier(self):
        self._kv.barrier()

    def close(self):
        self._kv.close()


def main():
    kind, size, keys, rounds = sys.argv[1], *map(int, sys.argv[2:5])
    worker = {"mxnet": Mxnet, "hpcps": Hpcps}[kind](size // 4, keys)
    speeds = {}
    for name, action in (("push", worker.push), ("pull", worker.pull)):
        action()
        worker.barrier()
        began = time.perf_counter()
        for _ in range(rounds):
            action()
        speeds[name] = size * keys * rounds / (time.perf_counter() - began) / 1e9
        worker.barrier()
    Path(sys.argv[5]).write_text(json.dumps(speeds))
    worker.close()


if __name__ == "__main__":
    main()
