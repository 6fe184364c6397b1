"""The number of files that a process may have open."""

import resource
from contextlib import suppress

ENOUGH = 65_536
"""Some programs close every possible file before they start others, which takes long with a higher limit."""


def raise_limit() -> None:
    """Raise the soft limit of this process and its children up to the hard limit.

    A process of an ordinary user may have 1,024 open files. A run in one process has a record for each role, and a
    process of a launch has the memory of each role on its host.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may refuse it; the run may need no more
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
