"""Runs ByzFL's rules on updates in shared memory, in a separate process, because ByzFL needs a separate environment.

    python byzfl_rules.py UPDATES RESULT

UPDATES and RESULT are descriptors of shared memory; RESULT holds as many float32 as the longest update. For each line
`rule n d f` of the input, the program runs the rule and prints the seconds that it took.
"""

import mmap
import sys
import time
import types
from importlib.util import find_spec

import numpy as np

# ByzFL's top-level package imports torchvision for data sets, which are not used here.
package = types.ModuleType("byzfl")
package.__path__ = list(find_spec("byzfl").submodule_search_locations)
sys.modules["byzfl"] = package

from byzfl.aggregators.aggregators import Average, Median, TrMean  # noqa: E402


def main() -> None:
    updates, result = (np.frombuffer(mmap.mmap(int(fd), 0), np.float32) for fd in sys.argv[1:3])
    print("ready", flush=True)
    for line in sys.stdin:
        rule, *numbers = line.split()
        n, d, f = map(int, numbers)
        aggregator = TrMean(f) if rule == "trimmed_mean" else {"average": Average, "median": Median}[rule]()
        values = updates[: n * d].reshape(n, d)
        began = time.perf_counter()
        combined = aggregator(values)
        took = time.perf_counter() - began
        result[:d] = combined
        print(took, flush=True)


main()
