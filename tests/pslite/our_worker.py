"""What one of our workers does in the tests, the same as mxnet_worker.py: `python our_worker.py SIZE`."""

import json
import sys

import numpy as np

from hpcps.kvstore import Client

size = int(sys.argv[1])
with Client() as kv:
    small, large = np.full((3, 4), 2, np.float32), np.arange(size, dtype=np.float32) % 1000
    kv.init(3, small)
    kv.init(4, large)
    first = kv.pull(3, np.zeros((3, 4), np.float32)).tolist()
    kv.push(3, np.full((3, 4), kv.rank + 1, np.float32))
    kv.push(4, large * (kv.rank + 1))
    summed = kv.pull(3, np.zeros((3, 4), np.float32)).tolist()
    pulled = kv.pull(4, np.zeros(size, np.float32))
    factor = np.float32(kv.workers * (kv.workers + 1) / 2)
    wrong = int((pulled != large * factor).sum())
    print(json.dumps({"rank": kv.rank, "workers": kv.workers, "first": first, "sum": summed, "wrong": wrong}))
