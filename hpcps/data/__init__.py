"""Data sets, their split into shards, and the stream of batches; no deep-learning framework is imported.

- `base`: the base class of data sets
- `sets/`: the data sets
- `samples`: samples and labels as the files hold them
- `parts`: the two parts of a data set, opened and checked
- `files/`: official files: downloads, checksums, formats
- `splits`: how the training samples are divided
- `shards`: the training samples of each worker
- `batches`: the stream of training batches
- `statistics`: the mean and the standard deviation of the training samples
"""

from hpcps.data.base import Data, Facts
from hpcps.data.samples import InMemory, Part, Samples

__all__ = ["Data", "Facts", "InMemory", "Part", "Samples"]
