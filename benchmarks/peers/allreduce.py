"""`mpirun -n N python allreduce.py FOLDER`: Allreduce in place, of the MPI of this environment."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI
from rounds import take_rounds


class Allreduce:
    """One call, in place."""

    def __init__(self, elements):
        self.buffer = np.zeros(elements, np.float32)

    def run(self):
        """See `Exchange.run`."""
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, self.buffer)


if __name__ == "__main__":
    take_rounds(Path(sys.argv[1]), MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, Allreduce)
