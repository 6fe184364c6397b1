"""A rank that says what it has mapped of `/dev/shm`, and is killed; `test_leftovers.py` starts it."""

import os
import signal

from mpi4py import MPI

from hpcps.protocol.messages import Peer
from hpcps.transport.mpi.process_group import MpiProcessGroup

rank = MPI.COMM_WORLD.Get_rank()
group = MpiProcessGroup(MPI.COMM_WORLD, {Peer("worker", r): r for r in range(MPI.COMM_WORLD.Get_size())})
with open("/proc/self/maps") as maps:
    named = {line.split()[5] for line in maps if "/dev/shm/" in line}
if rank == 0:
    print("MAPPED", *sorted(named), flush=True)
group.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
group.barrier()
