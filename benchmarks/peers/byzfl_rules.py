"""Runs ByzFL's rules on updates in shared memory, in a separate process, because ByzFL needs a separate environment.

    python byzfl_rules.py UPDATES RESULT

UPDATES and RESULT are descriptors of shared memory; RESULT holds as many float32 as the longest update. For each line
`rule n d f form` of the input, the program runs the rule and prints the seconds that it took. The rule may be a list,
such as `nnm,median`: pre-aggregators, then the rule. The form is `numpy` or `torch`: the kind of array that the rule
gets. If a rule fails for torch tensors, the program prints `failed`.
"""

import mmap
import sys
import time
import types
from importlib.util import find_spec

import numpy as np
import torch

# ByzFL's top-level package imports torchvision for data sets, which are not used here.
package = types.ModuleType("byzfl")
package.__path__ = list(find_spec("byzfl").submodule_search_locations)
sys.modules["byzfl"] = package

from byzfl.aggregators import aggregators, preaggregators  # noqa: E402

RULES = {
    "average": lambda f: aggregators.Average(),
    "median": lambda f: aggregators.Median(),
    "trimmed_mean": lambda f: aggregators.TrMean(f),
    "meamed": lambda f: aggregators.Meamed(f),
    "krum": lambda f: aggregators.Krum(f),
    "multi_krum": lambda f: aggregators.MultiKrum(f),
    "mda": lambda f: aggregators.MDA(f),
    "caf": lambda f: aggregators.CAF(f),
    "monna": lambda f: aggregators.MoNNA(f),
    "geometric_median": lambda f: aggregators.GeometricMedian(nu=0.1, T=3),
    "centered_clipping": lambda f: aggregators.CenteredClipping(L=1, tau=100.0),
}
BEFORE = {
    "nnm": lambda f: preaggregators.NNM(f),
    "arc": lambda f: preaggregators.ARC(f),
    "clipping": lambda f: preaggregators.Clipping(c=2.0),
    "bucketing": lambda f: preaggregators.Bucketing(s=2),
}


def main() -> None:
    updates, result = (np.frombuffer(mmap.mmap(int(fd), 0), np.float32) for fd in sys.argv[1:3])
    print("ready", flush=True)
    for line in sys.stdin:
        names, *numbers, form = line.split()
        n, d, f = map(int, numbers)
        *before, rule = names.split(",")
        stages = [BEFORE[name](f) for name in before] + [RULES[rule](f)]
        values = updates[: n * d].reshape(n, d)
        if {"arc", "clipping"} & {*before}:
            values = values.copy()  # ByzFL's clipping changes its argument
        if form == "torch":
            values = torch.from_numpy(values)
        began = time.perf_counter()
        try:
            for stage in stages:
                values = stage(values)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            if form == "numpy":
                raise
            print("failed", flush=True)
            continue
        took = time.perf_counter() - began
        result[:d] = np.asarray(values)
        print(took, flush=True)


main()
