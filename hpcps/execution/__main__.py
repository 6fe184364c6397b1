"""`python -m mpi4py -m hpcps.execution PLAN [ROLE]`: the program of every rank; without MPI, without `-m mpi4py`."""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from hpcps.errors import HpcpsError
from hpcps.launch.guard import LostGuards, stand_guard
from hpcps.launch.limits import raise_limit
from hpcps.launch.local_rank import TRAINING, close_input, planned_rank, preset_gpu, share_gpu
from hpcps.launch.plan import Plan


def load(plan: Plan, roles: Collection[str]) -> None:
    """Import what a process with one of these roles imports, so that its forks have it; see `hpcps.launch.forked`."""
    import hpcps.execution.bootstrap
    import hpcps.execution.process  # noqa: F401

    # MXNet starts threads when it is imported, which a fork does not have.
    if {*roles}.intersection(TRAINING) and any(run.spec["run"]["model"]["backend"] == "torch" for run in plan.runs):
        from hpcps.training.build import trainer_of

        trainer_of("torch", 1)
    gc.freeze()


def main() -> int:
    """Read the plan, start a guard, choose the GPU (before any import of MPI or the framework), and run the role."""
    # Until the role can record a stop, SIGINT ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise_limit()
    # At its exit, Python collects garbage several times: with torch that takes a third of a second.
    atexit.register(gc.freeze)
    try:
        plan = Plan.read(Path(sys.argv[1]))
    except HpcpsError as error:
        print(f"hpcps: {error}", file=sys.stderr)
        return 2
    if plan.umask is not None:
        os.umask(plan.umask)
    me = planned_rank(plan)
    name = str(me or "")
    uses_mps, mps = share_gpu(plan, Path(sys.argv[1]))
    lost = LostGuards(Path(sys.argv[1])).file(name or str(os.getpid()))
    started = stand_guard(name, lost, plan.silence(me), mps)
    # srun forwards SIGUSR1, but not SIGTERM. `execute` handles SIGTERM; before that, SIGTERM ends the process.
    signal.signal(signal.SIGUSR1, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
    close_input()
    preset_gpu(plan)
    # What is imported stays: searching it for garbage takes a fifth of the time of the imports.
    gc.disable()
    from hpcps.execution.bootstrap import process_group
    from hpcps.execution.process import execute, say
    from hpcps.launch.stop import StopFile
    from hpcps.transport.process_group import DeclaredLostError

    gc.enable()
    try:
        with process_group(plan, Path(sys.argv[1])) as group:
            started()
            role = sys.argv[2] if len(sys.argv) > 2 else ""
            return execute(plan, role, StopFile(Path(sys.argv[1])), group, mps=uses_mps)
    except DeclaredLostError as error:
        say(me or "a process", error)
        os.kill(os.getpid(), signal.SIGKILL)  # it is lost like any other, and is replaced
        return 2
    except HpcpsError as error:
        say(me or "a process", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
