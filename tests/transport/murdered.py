"""A rank that says what it has mapped of `/dev/shm`, and is killed; `test_leftovers.py` starts it."""

import os
import signal
import sys

from mpi4py import MPI

from hpcps.messages import Peer
from hpcps.transport.mpi_gathering import MpiGathering

rank = MPI.COMM_WORLD.Get_rank()
gathering = MpiGathering(MPI.COMM_WORLD, {Peer("worker", r): r for r in range(MPI.COMM_WORLD.Get_size())})
with open("/proc/self/maps") as maps:
    named = {line.split()[5] for line in maps if "/dev/shm/" in line}
if rank == 0:
    print("MAPPED", *sorted(named), flush=True)
gathering.barrier()
if rank == 1 and sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
gathering.barrier()
