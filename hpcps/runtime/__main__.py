"""`python -m mpi4py -m hpcps.runtime PLAN [ROLE]`: what a configfile starts as every rank; without MPI without it."""

import os
import signal
import socket
import sys
from pathlib import Path

from hpcps.errors import HpcpsError
from hpcps.launch.guard import stand_guard
from hpcps.launch.local_rank import planned_rank, preset_gpu
from hpcps.launch.mps import share_gpu
from hpcps.launch.plan import Plan
from hpcps.launch.stop import StopFile


def main() -> int:
    """Read the plan, put a guard over the process, choose its GPU (before MPI and the framework look), and play."""
    # Until a role can record that it was stopped, it just ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        plan = Plan.read(Path(sys.argv[1]))
    except HpcpsError as error:
        print(f"hpcps: {error}", file=sys.stderr)
        return 2
    me = planned_rank(plan)
    stand_guard(str(me) if me else "a process of unknown rank")
    # srun passes SIGUSR1 on, and SIGTERM not. `play` heeds SIGTERM; until then that ends the process.
    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    mps = share_gpu(plan, Path(sys.argv[1]))
    preset_gpu(plan)
    from hpcps.runtime.meeting import meeting
    from hpcps.runtime.process import play

    try:
        with meeting(plan, Path(sys.argv[1])) as gathering:
            role = sys.argv[2] if len(sys.argv) > 2 else ""
            return play(plan, role, StopFile(Path(sys.argv[1])), gathering, mps=mps is not None and mps.used)
    except HpcpsError as error:
        # One write: all processes may say so at once, and `print` writes the end of the line by itself.
        sys.stderr.write(f"hpcps: {me or 'a process'} on {socket.gethostname()}: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
