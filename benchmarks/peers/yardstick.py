"""`python yardstick.py FOLDER RANK RANKS BUFFERS`: numpy copies of BUFFERS arrays, one after another, into one."""

import sys
from pathlib import Path

import numpy as np
from rounds import take_rounds


class Copies:
    """Copies as many arrays as a round has updates, so that caches hold as much of them as of the updates."""

    def __init__(self, elements, buffers, ranks):
        self._sources = [np.full(elements, ranks * (ranks + 1) // 2, np.float32) for _ in range(buffers)]
        self.buffer = np.zeros(elements, np.float32)

    def run(self):
        """See `Exchange.run`."""
        for source in self._sources:
            np.copyto(self.buffer, source)


if __name__ == "__main__":
    rank, ranks, buffers = map(int, sys.argv[2:])
    take_rounds(Path(sys.argv[1]), rank, ranks, lambda elements: Copies(elements, buffers, ranks))
