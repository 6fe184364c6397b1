"""Puts this folder on the path: `from installed import BACKEND` in any test. Fails tests that leave files open.

The folders of tests are in memory, where there is enough.
"""

import gc
import os
import shutil
import signal
import sys

import pytest

pytest_plugins = ["fast"]

# A shell without job control starts background commands with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MEMORY, _ENOUGH = "/dev/shm", 4 << 30
"""A file system in memory, and the free bytes that the folders of all tests need at most."""

# Records are written so that they survive a machine that fails, which no test tries: on a disk, tests that execute
# whole runs wait for it for a quarter of their time.
if os.path.isdir(_MEMORY) and shutil.disk_usage(_MEMORY).free >= _ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


def _opened(since: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the open file descriptors of this process that were not open before, and what each refers to."""
    found = {}
    for number in frozenset(os.listdir("/proc/self/fd")) - since:
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of the listing
            continue
    # Libraries keep their own files open, such as fonts.
    return {number: target for number, target in found.items() if not target.startswith((sys.prefix, "/usr/"))}


CHECKED = {"architecture", "asynchronous", "buffers", "roles", "transport"}
"""The folders whose tests must close all files: those that drive roles and transports."""


@pytest.fixture(autouse=True)
def _all_files_are_closed(request):
    """Fail a test that leaves file descriptors open: a process of an ordinary user may have 1,024 of them."""
    if request.path.parent.name not in CHECKED:
        yield
        return
    before = frozenset(os.listdir("/proc/self/fd"))
    yield
    for _ in range(2):
        # Collecting takes too long to do it after every test. What finalizers release is collected the second time.
        if _opened(before):
            gc.collect()
    left = _opened(before)
    assert not left, f"the test leaves files open: {', '.join(sorted(left.values()))}"
