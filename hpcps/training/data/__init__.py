"""Data sets, their cut into shards, and the stream of batches; free of any framework."""

from hpcps.training.data.batches import BatchStream
from hpcps.training.data.open import DataSet, open_data
from hpcps.training.data.samples import Part, Samples
from hpcps.training.data.split import shard_indices, shard_size, steps_per_epoch

__all__ = [
    "BatchStream",
    "DataSet",
    "Part",
    "Samples",
    "open_data",
    "shard_indices",
    "shard_size",
    "steps_per_epoch",
]
