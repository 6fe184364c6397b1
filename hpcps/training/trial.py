"""Tries the components of runs before anything is started, so that what is wrong with them is one error."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

import numpy as np

from hpcps.data.parts import open_parts
from hpcps.data.shards import all_shards, shard_size
from hpcps.errors import DataError
from hpcps.registry import BUILT_IN
from hpcps.spec.plugins import used
from hpcps.spec.schema import Run


def try_data(run: Run) -> None:
    """Open the data set of a run and read all labels and a sample or two of each part.

    Raises:
        DataError: a file is missing, truncated or corrupt.
        SpecError: the data set is not usable.
    """
    for part in open_parts(run.data):
        part.labels()
        part.read(np.unique([0, part.size - 1]))


def try_components(runs: Iterable[Run]) -> None:
    """Try the data sets, splits and models that are not built in, as far as their files and framework are here.

    Raises:
        SpecError: one of them is not usable.
    """
    tried = set()
    for run in runs:
        data, model, facts = run.data, run.model, run.data.facts
        foreign = {key for key, entry in used(run).items() if entry.origin != BUILT_IN}
        if not foreign:
            continue
        key = data.model_dump_json(), model.model_dump_json(), run.seed, run.topology.workers, run.train.batch_size
        if key in tried:
            continue
        tried.add(key)
        try:
            if "data" in foreign:
                try_data(run)
            if "data.split" in foreign:
                size = shard_size(data, run.train.batch_size)
                all_shards(data, size, run.seed, open_parts(data)[0].labels, held_out=run.holds_out)
        except DataError:
            pass  # the files are not here
        # A network may need the GPU, which is not for the process that starts the others.
        tries_model = run.model.backend == "torch" and run.train.device != "cuda" and find_spec("torch")
        if tries_model and foreign & {"data", "model"}:
            import torch

            from hpcps.training.pytorch.network import build_network

            build_network(model, facts, torch.device("cpu"))
