"""Messages between the ranks of one host, which the tests of this folder send and wait for."""

import time

import numpy as np

from hpcps.protocol.envelope import Envelope
from hpcps.protocol.messages import Peer, Statistics

RUN = "0123456789"


def wait_for(transport):
    backoff, until = transport.backoff(), time.monotonic() + 60
    while time.monotonic() < until:
        if (event := transport.receive()) is not None:
            return event
        backoff.wait()
    raise TimeoutError


def say(rank, payload=None, round=0):
    values = np.zeros(0, np.float32) if payload is None else payload
    return Envelope(Peer("worker", rank), RUN, Statistics(round=round, values=values))
