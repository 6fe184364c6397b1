"""Messages between the ranks of one host, which the tests of this folder send and wait for."""

import time

from hpcps.protocol.messages import Kind, Message, Peer

RUN = "0123456789"


def wait_for(transport):
    backoff, until = transport.backoff(), time.monotonic() + 60
    while time.monotonic() < until:
        if (event := transport.receive()) is not None:
            return event
        backoff.wait()
    raise TimeoutError


def say(rank, payload=None, round=0):
    return Message(Kind.UPDATE, Peer("worker", rank), RUN, round, payload=payload)
