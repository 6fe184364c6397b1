"""A data set with both parts open, and the shards of a run, as tests look at them."""

from hpcps.data.shards import all_shards, shard_size


class Opened:
    """Both parts of a data set."""

    def __init__(self, data):
        self.facts = data.facts
        self.train, self.test = data.open()
        self._data = data

    def read_test(self, limit):
        """Read the first test samples."""
        return self._data.model_copy(update={"test_limit": limit}).read_test(self.test)


def shard_indices(run, shard, labels):
    """Return the places of one shard."""
    size = shard_size(run.data, run.train.batch_size)
    return all_shards(run.data, size, run.seed, labels, held_out=run.holds_out)[shard]


def steps_per_epoch(run):
    """Return the number of steps of an epoch."""
    return run.train.passes_per_epoch * (shard_size(run.data, run.train.batch_size) // run.train.batch_size)
