"""Data sets, their split into shards, and the stream of batches; no deep-learning framework is imported."""

from hpcps.data.base import Data, Facts
from hpcps.data.samples import InMemory, Part, Samples

__all__ = ["Data", "Facts", "InMemory", "Part", "Samples"]
