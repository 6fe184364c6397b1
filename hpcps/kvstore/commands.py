"""The commands that MXNet's workers give their servers."""

from enum import IntEnum


class StoreCommand(IntEnum):
    """What a worker tells a server to do."""

    OPTIMIZER = 0
    """Use the pickled optimizer in the body. We unpickle nothing."""
    MULTI_PRECISION = 1
    STOP = 2
    SYNC = 3
    COMPRESSION = 4
    PROFILER = 5
