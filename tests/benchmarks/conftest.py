"""The programs of `benchmarks/` are run in this process: what they change of it is not for the tests after them."""

import ctypes
import signal

import pytest

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def process_as_before():
    """Take SIGTERM as before afterwards, and adopt nobody's children."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
