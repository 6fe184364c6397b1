"""Members of a session in one thread, over the transport of one process: a test steps them in any order."""

from collections import deque

import numpy as np

from hpcps.numerics.layout import private
from hpcps.protocol.messages import Peer
from hpcps.session.member import Member
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration
from hpcps.transport.inproc import Exchange


class Link:
    """The transport of a process whose network sends a message only when a test calls `advance`."""

    def __init__(self, end):
        self._end, self._sending = end, deque()
        self.traffic, self.receive = end.traffic, end.receive

    @property
    def unsent(self):
        return sum(envelope.payload_bytes for _, envelope in self._sending)

    def send(self, to, envelope):
        self._sending.append((to, envelope))
        if not self.unsent:
            self.advance()

    def advance(self):
        """Send the first message, and those after it that have no payload; return its message, if there is one."""
        first = self._sending[0][1].message if self._sending else None
        while self._sending:
            self._end.send(*self._sending.popleft())
            if self._sending and self._sending[0][1].payload_bytes:
                break
        return first


class Members:
    def __init__(self, workers, servers=0, timeout=600.0, shared_memory=False, weights=None, credit=None, near=False):
        """Begin a session; with a credit, over a `Link` of each process; `near`: as neighbours send."""
        self.world = [Peer("worker", k) for k in range(workers)] + [Peer("server", s) for s in range(servers)]
        self.messages = 0
        exchange = Exchange(self.carry)
        self.links = [exchange.endpoint(peer) for peer in self.world]
        if credit is not None:
            self.links = [Link(end) for end in self.links]
        self.all = [
            Member(
                peer, self.world, end, private, timeout=timeout, shared_memory=shared_memory,
                sharding=None if weights is None else Sharding(dict(zip(self.world, weights, strict=True))),
                neighbours=self.world if near else (),
            )
            for peer, end in zip(self.world, self.links, strict=True)
        ]  # fmt: skip
        self.workers = self.all[:workers]
        for member in self.all if credit is not None else ():
            member.outbox.credit = credit

    def carry(self, source, to, size, arrive):
        self.messages += 1
        arrive()

    def run(self, random=None):
        """Step all members until nobody has a message."""
        while True:
            for member in self.all:
                member.flush()
            order = self.all if random is None else [self.all[k] for k in random.permutation(len(self.all))]
            if not sum(member.step() for member in order):
                return

    def combine(self, arrays, reduction, name="x", dtype=None, blocks=None):
        """Exchange one array of each worker; return the results. None: the worker gives nothing."""
        shape = next(array.shape for array in arrays if array is not None)
        kind = dtype or str(next(array.dtype for array in arrays if array is not None))
        shapes = (shape,) if blocks is None else tuple((size,) for size in blocks)
        results = []
        for member, array in zip(self.workers, arrays, strict=True):
            tensor = member.declare(Declaration(name, kind, shapes, reduction))
            like = next(each for each in arrays if each is not None)
            target = np.zeros(like.nbytes, np.uint8)
            source = None if array is None else np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            member.start(tensor, None if source is None else [source], [target])
            results.append(target)
        self.run()
        assert not any(member.participant.exchanges for member in self.workers)
        return [target.view(like.dtype).reshape(shape) for target in results]
