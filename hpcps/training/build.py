"""Makes the learner of one role from the experiment file."""

from __future__ import annotations

from functools import partial

from hpcps import seeds
from hpcps.spec.schema import Run
from hpcps.training.data import BatchStream, open_data, shard_indices
from hpcps.training.data.batches import Normaliser
from hpcps.training.data.split import shard_of
from hpcps.training.learner import Learner
from hpcps.training.schedule import schedule_of


def build_learner(run: Run, role: str, index: int) -> Learner:
    """Build the model, load the shard and start the random streams of a role.

    Every role of a run begins with the same weights. The test set is read at the first evaluation.

    Args:
        run: the resolved run.
        role: `"worker"` (trains on shard `index`) or `"validator"` (on the last shard).
        index: the role's index.

    Raises:
        SpecError: a shard does not fill one batch, or there is no GPU where one is asked for.
        DataError: a data file is missing, truncated or corrupt.
    """
    data = open_data(run.data)
    shard = data.train.read(shard_indices(run, shard_of(run, role, index), data.train.labels))
    normalise = Normaliser(data.facts)
    stream = BatchStream(
        shard,
        run.train.batch_size,
        normalise,
        partial(seeds.generator, run.seed, role, index),
        augment=bool(run.data.augment),
    )
    from hpcps.training.pytorch.learner import TorchLearner

    return TorchLearner(
        run.model.name,
        data.facts,
        schedule_of(run, role),
        stream,
        weights=seeds.generator(run.seed, "experiment", 0, "weights"),
        test=lambda: data.read_test(run.data.test_limit),
        normalise=normalise,
    )
