"""Measures mistakes of the libraries that a user may not notice, in the process of `library.py`."""

from __future__ import annotations

import importlib
import signal
import tracemalloc
from typing import Any

import numpy as np

PATIENCE = 5
"""Seconds after which a rule on a small input counts as endless."""
TRIALS = 2000
"""Number of random inputs of Krum."""


def krum_inputs() -> Any:
    """Return the inputs of Krum: 10 updates of 10 elements, of which 2 may be Byzantine."""
    return np.random.default_rng(1).normal(size=(TRIALS, 10, 10))


def offset_inputs() -> Any:
    """Return float32 updates that are far from zero, as seen from their differences, and f = 2 of 10."""
    random = np.random.default_rng(2)
    return (1000 + 0.1 * random.normal(size=(200, 10, 100))).astype(np.float32)


def chosen(rows: Any, result: Any) -> int:
    """Return which row a result is."""
    return int(np.abs(rows - np.asarray(result)).sum(axis=1).argmin())


def byzfl_krum() -> list[int]:
    rule = importlib.import_module("byzfl.aggregators.aggregators").Krum(2)
    return [chosen(rows, rule(rows)) for rows in krum_inputs()]


def byzpy_krum() -> list[int]:
    return [chosen(rows, _byzpy_krum(rows)) for rows in krum_inputs()]


def flwr_krum() -> list[int]:
    krum = importlib.import_module("flwr.server.strategy.aggregate").aggregate_krum
    return [chosen(rows, krum([([row], 1) for row in rows], 2, 0)[0]) for rows in krum_inputs()]


def byzfl_offset() -> list[int]:
    import torch

    rule = importlib.import_module("byzfl.aggregators.aggregators").Krum(2)
    return [chosen(rows, rule(torch.from_numpy(rows))) for rows in offset_inputs()]


def byzpy_offset() -> list[int]:
    return [chosen(rows, _byzpy_krum(rows)) for rows in offset_inputs()]


def flwr_offset() -> list[int]:
    from library import Content, Record

    select = importlib.import_module("flwr.serverapp.strategy.multikrum").select_multikrum
    return [
        chosen(rows, select([Content(arrays=Record(w=row)) for row in rows], 2, 1)[0]["arrays"]["w"])
        for rows in offset_inputs()
    ]


def _byzpy_krum(rows: Any) -> Any:
    import torch

    krum = importlib.import_module("byzpy.aggregators.geometric_wise.krum").Krum(2)
    return krum.aggregate(list(torch.from_numpy(rows)))


def byzfl_start() -> str:
    """Return what happens if centered clipping is given its first vector."""
    try:
        importlib.import_module("byzfl.aggregators.aggregators").CenteredClipping(m=np.zeros(3))
    except TypeError as error:
        return str(error)
    return ""


def byzfl_arc() -> int:
    """Return how many of 242 updates ARC cuts with f = 33."""
    rows = np.arange(1.0, 243.0)[:, None]
    after = importlib.import_module("byzfl.aggregators.preaggregators").ARC(33)(rows.copy())
    return int((after != rows).sum())


def byzpy_arc() -> int:
    """Return the same of ByzPy."""
    import torch

    rows = torch.arange(1.0, 243.0, dtype=torch.float64)[:, None]
    arc = importlib.import_module("byzpy.pre_aggregators.arc").ARC(33)
    return int((torch.stack(arc.pre_aggregate(list(rows))) != rows).sum())


def byzpy_arrays() -> str:
    """Return what the pre-aggregator ARC says to numpy arrays."""
    try:
        importlib.import_module("byzpy.pre_aggregators.arc").ARC(1).pre_aggregate(list(np.eye(4)))
    except TypeError as error:
        return str(error)
    return ""


def byzfl_memory() -> float:
    """Return the memory that NNM allocates, in units of its input: 16 updates of 100,000 float32."""
    rows = np.random.default_rng(1).normal(size=(16, 100_000)).astype(np.float32)
    rule = importlib.import_module("byzfl.aggregators.preaggregators").NNM(3)
    tracemalloc.start()
    rule(rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / rows.nbytes


def byzfl_changes() -> list[str]:
    """Return the pre-aggregators that change their input."""
    pre = importlib.import_module("byzfl.aggregators.preaggregators")
    made = {"ARC": pre.ARC(2), "Clipping": pre.Clipping(2.0), "NNM": pre.NNM(2), "Bucketing": pre.Bucketing(2)}
    changing = []
    for name, rule in made.items():
        rows = np.random.default_rng(1).normal(size=(8, 9)) * 5
        before = rows.copy()
        rule(rows)
        if not np.array_equal(rows, before):
            changing.append(name)
    return changing


def byzfl_nan() -> list[int]:
    """Return how many of the 8 rows of NNM are NaN if one row of its input is, for each position of that row."""
    nnm, found = importlib.import_module("byzfl.aggregators.preaggregators").NNM(2), []
    for position in range(8):
        rows = np.random.default_rng(1).normal(size=(8, 9))
        rows[position] = np.nan
        found.append(int(np.isnan(nnm(rows)).any(axis=1).sum()))
    return found


def byzfl_caf() -> bool:
    return _ends(importlib.import_module("byzfl.aggregators.aggregators").CAF(1), np.array)


def byzpy_caf() -> bool:
    import torch

    caf = importlib.import_module("byzpy.aggregators.norm_wise").CAF(1)
    return _ends(caf.aggregate, lambda rows: list(torch.from_numpy(rows)))


def caf_input() -> Any:
    """Return 8 updates of 3 elements, of which one is long."""
    rows = np.random.default_rng(1).normal(size=(8, 3))
    rows[0] = 1e10
    return rows


def _ends(rule: Any, given: Any) -> bool:
    """Return whether a rule returns in time."""

    def late(*signals: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        rule(given(caf_input()))
    except TimeoutError:
        return False
    finally:
        signal.alarm(0)
    return True


def flwr_list() -> int:
    """Return how many of 11 results are left in the list after Bulyan."""
    aggregate = importlib.import_module("flwr.server.strategy.aggregate")
    results = [([row], 1) for row in np.random.default_rng(1).normal(size=(11, 3))]
    aggregate.aggregate_bulyan(results, 2, aggregate.aggregate_krum, to_keep=0)
    return len(results)
