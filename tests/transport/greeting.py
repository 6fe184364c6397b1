"""Started as every rank: each sends what lies in its memory to all others; rank 0 prints who read whose in place."""

import json
import time

from mpi4py import MPI

from hpcps.messages import Kind, Message, Peer, Received
from hpcps.transport.mpi_gathering import MpiGathering

world = MPI.COMM_WORLD
peers = [Peer("worker", rank) for rank in range(world.size)]
gathering = MpiGathering(world, {peer: rank for rank, peer in enumerate(peers)})
transport, patience, until = gathering.transport, gathering.patience(), time.monotonic() + 60
mine = gathering.allocate(300_000)
mine[:] = world.rank
for peer in peers:
    if peer != peers[world.rank]:
        transport.send(peer, Message(Kind.UPDATE, peers[world.rank], "0123456789", 0, payload=mine))
came = {}
while len(came) < world.size - 1:
    event = transport.receive()
    if event is None:
        assert time.monotonic() < until, "nothing came"
        patience.wait()
        continue
    assert isinstance(event, Received)
    assert (event.message.values == event.source.index).all()
    came[event.source.index] = event.message.values
gathering.barrier()
mine[:] = -1.0
gathering.barrier()
in_place = sorted(rank for rank, values in came.items() if (values == -1.0).all())
said = gathering.collect(json.dumps([sorted(peer.index for peer in gathering.in_memory()), in_place]))
gathering.settle()
if world.rank == 0:
    print("GREETING" + json.dumps([json.loads(text) for text in said]), flush=True)
