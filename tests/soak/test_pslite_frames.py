"""100,000 mutated messages at a server and a scheduler that run: `make soak`.

They come from a worker that the others know, so that they get as far as they can: its frames are read, its requests are
served if they are in order, and nothing that it sends may end a node or change a value of another key.
"""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pslite"))
from mutation import mutated, mutated_data
from threads import Cluster

from hpcps.transport.pslite.encoding import MalformedFrameError, decode, encode
from hpcps.transport.pslite.meta import Command
from hpcps.transport.pslite.payload import Pairs

pytestmark = pytest.mark.soak
MESSAGES = 100_000


def obeyed(frame):
    """Whether a known worker's message is an order that a node must follow, mutated or not."""
    try:
        meta = decode(frame)
    except MalformedFrameError:
        return False
    return meta.simple_app or (meta.control is not None and meta.control.command == Command.BARRIER)


def test_mutated_messages_of_a_known_worker(caplog):
    source = random.Random(7)
    cluster = Cluster(1, 2, timeout=60.0)
    scheduler, ended = cluster.scheduler()
    server, served = cluster.server()
    value = np.arange(64, dtype=np.float32)
    data = [bytes(frame) for frame in Pairs.one(5, np.zeros(4, np.uint8)).frames()]

    def attack(kv):
        kv.init(7, value)
        kv.barrier()
        sockets, sent = kv.node._members.sockets, 0
        while sent < MESSAGES:
            frame = mutated(source)
            if not obeyed(frame):
                frames = mutated_data(source, data) if source.random() < 0.7 else []
                sockets.send(source.choice((1, 8)), [frame, *frames])
                sent += 1
        # An answer to a forged request of this worker's must not be taken for the answer to what it asks for now.
        kv.node._members._timestamp += 1 << 20
        # Messages are read in order: when this is answered, all before it were read.
        kv.pull(7, np.empty_like(value))
        return sent

    def job(kv):
        if kv.rank == 1:
            kv.init(7, value)
            kv.barrier()
            kv.barrier()
            return kv.pull(7, np.empty_like(value)).tolist()
        sent = attack(kv)
        kv.barrier()
        return sent

    results = [each.result(300) for each in [cluster.worker(job), cluster.worker(job)]]
    assert MESSAGES in results
    assert value.tolist() in results
    assert (ended.result(60), served.result(60)) == (None, None)
    dropped = [sum(node.dropped.counts.values()) for node in (scheduler, server.node)]
    assert min(dropped) > MESSAGES / 8, dropped
    assert len(caplog.records) < 400


def test_mutated_frames_are_read_or_refused():
    source = random.Random(8)
    for _ in range(MESSAGES):
        try:
            meta = decode(mutated(source))
        except MalformedFrameError:
            continue
        assert encode(decode(encode(meta))) == encode(meta)
