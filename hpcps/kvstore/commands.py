"""The commands of workers to servers, which are those of MXNet and one of ours; marks on requests of our workers."""

from enum import IntEnum

REQUEST, FIRST_VALUE = b"hpcps", b"hpcps first value"
"""The `body` of a request of our workers for a key. The sender reads the reason for a refusal from the body of the
answer. FIRST_VALUE also sets the first value of the key. MXNet's nodes neither send nor read this body."""


class StoreCommand(IntEnum):
    """A command of a worker to a server."""

    OPTIMIZER = 0
    """Use the pickled optimizer in the body. hpcps refuses it, because it unpickles nothing."""
    MULTI_PRECISION = 1
    STOP = 2
    SYNC = 3
    COMPRESSION = 4
    PROFILER = 5
    DESCRIBE = 1000
    """Answer with a description of the value of the key in the body. Servers of MXNet and ps-lite answer a command that
    they do not know with an empty body, and their workers never send this one."""
