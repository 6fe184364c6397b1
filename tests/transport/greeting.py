"""Started as every rank: each sends what lies in its memory to all others; rank 0 prints who read whose in place."""

import json
import time

from mpi4py import MPI

from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Peer, Statistics
from hpcps.transport.mpi.process_group import MpiProcessGroup

world = MPI.COMM_WORLD
peers = [Peer("worker", rank) for rank in range(world.size)]
group = MpiProcessGroup(world, {peer: rank for rank, peer in enumerate(peers)})
transport, backoff, until = group.transport, group.backoff(), time.monotonic() + 60
mine = group.allocate(300_000)
mine[:] = world.rank
for peer in peers:
    if peer != peers[world.rank]:
        transport.send(peer, Envelope(peers[world.rank], "0123456789", Statistics(round=0, values=mine)))
came = {}
while len(came) < world.size - 1:
    event = transport.receive()
    if event is None:
        assert time.monotonic() < until, "nothing came"
        backoff.wait()
        continue
    assert isinstance(event, Delivered)
    assert (event.envelope.message.values == event.source.index).all()
    came[event.source.index] = event.envelope.message.values
group.barrier()
mine[:] = -1.0
group.barrier()
in_place = sorted(rank for rank, values in came.items() if (values == -1.0).all())
said = group.collect(json.dumps([sorted(peer.index for peer in group.in_memory()), in_place]))
group.settle()
if world.rank == 0:
    print("GREETING" + json.dumps([json.loads(text) for text in said]), flush=True)
