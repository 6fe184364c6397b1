"""One of our workers, which may die: `python mortal_worker.py dies|stays|returns`; prints what it saw."""

import json
import os
import signal
import sys

import numpy as np

from hpcps.kvstore import Client

part = sys.argv[1]
with Client() as kv:
    kv.init(0, np.full(4, 7, np.float32))
    if part == "dies":
        print(json.dumps({"rank": kv.rank}), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    before = kv.pull(0, np.empty(4, np.float32)).tolist()
    kv.push(0, np.full(4, 2, np.float32))
    after = kv.pull(0, np.empty(4, np.float32)).tolist()
    print(json.dumps({"rank": kv.rank, "recovered": kv.node.recovered, "before": before, "after": after}))
