"""Makes the learner of one role from the experiment file."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hpcps import seeds
from hpcps.errors import SpecError
from hpcps.spec.schema import Run
from hpcps.training.data import BatchStream, open_data, shard_indices
from hpcps.training.data.batches import Normaliser
from hpcps.training.data.split import shard_of
from hpcps.training.learner import Learner
from hpcps.training.schedule import schedule_of

if TYPE_CHECKING:
    from hpcps.training.mxnet.learner import MxnetLearner
    from hpcps.training.pytorch.learner import TorchLearner


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
    return learner_of(run.model.backend, run.train.threads)(
        run.model.name,
        data.facts,
        schedule_of(run, role),
        stream,
        weights=seeds.generator(run.seed, "experiment", 0, "weights"),
        test=lambda: data.read_test(run.data.test_limit),
        normalise=normalise,
    )


def find_framework(backend: str) -> None:
    """Make sure that the framework of a backend is installed here; nothing is loaded.

    Raises:
        SpecError: it is not.
    """
    if backend == "mxnet":
        from hpcps.training.mxnet.framework import find_mxnet

        find_mxnet()
    elif find_spec("torch") is None:
        raise SpecError(
            'model.backend = "torch", but torch is not installed here: install hpcps with its extra "torch"'
        )


def learner_of(backend: str, threads: int) -> type[TorchLearner] | type[MxnetLearner]:
    """Return the learner of a backend, whose framework is loaded only now.

    Raises:
        SpecError: the framework is not installed here.
    """
    if backend == "mxnet":
        from hpcps.training.mxnet.framework import load_mxnet

        load_mxnet(threads)
        from hpcps.training.mxnet.learner import MxnetLearner

        return MxnetLearner
    find_framework(backend)
    from hpcps.training.pytorch.learner import TorchLearner

    return TorchLearner
