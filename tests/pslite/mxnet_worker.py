"""What an MXNet worker does in the tests; runs in the environment that has MXNet, and prints what it saw.

`python mxnet_worker.py SIZE`: the steps are those of `ours_worker` in test_mxnet_nodes.py.
"""

import json
import sys

import mxnet as mx

size = int(sys.argv[1])
kv = mx.kv.create("dist_sync")
small, large = mx.nd.ones((3, 4)) * 2, mx.nd.arange(size) % 1000
kv.init(3, small)
kv.init(4, large)
out = mx.nd.zeros((3, 4))
kv.pull(3, out=out)
first = out.asnumpy().tolist()
kv.push(3, mx.nd.ones((3, 4)) * (kv.rank + 1))
kv.push(4, (mx.nd.arange(size) % 1000) * (kv.rank + 1))
kv.pull(3, out=out)
summed = out.asnumpy().tolist()
pulled = mx.nd.zeros(size)
kv.pull(4, out=pulled)
factor = kv.num_workers * (kv.num_workers + 1) / 2
wrong = int((pulled.asnumpy() != (mx.nd.arange(size) % 1000).asnumpy() * factor).sum())
print(json.dumps({"rank": kv.rank, "workers": kv.num_workers, "first": first, "sum": summed, "wrong": wrong}))
