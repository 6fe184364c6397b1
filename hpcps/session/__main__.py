"""`python -m hpcps.session PLAN [ROLE]`: the program of every rank of a script: a server, or what starts the script."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from hpcps.errors import HpcpsError, LaunchError
from hpcps.launch.ancestry import leave_launch
from hpcps.launch.arrivals import Arrivals
from hpcps.launch.guard import LostGuards, stand_guard
from hpcps.launch.limits import raise_limit
from hpcps.launch.local_rank import (
    OWN_RANK,
    PLAN,
    bind_to_node,
    close_input,
    planned_rank,
    preset_gpu,
    variables_of_worker,
)
from hpcps.launch.losses import Losses
from hpcps.launch.plan import Plan, Rank

_LINGER = 1.0
"""Seconds in which the other processes notice that one has failed, before the launcher ends them."""


def main() -> int:
    """Read the plan, start a guard, and become the script; or serve, if this rank is a server."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise_limit()
    try:
        plan_file = Path(sys.argv[1])
        plan = Plan.read(plan_file)
        survives = plan.script is not None and plan.script.survives
        if survives:
            plan, _ = Losses(plan_file).present(plan)
        me = planned_rank(plan)
        if me is None and survives and OWN_RANK in os.environ:
            return 0  # it replaces a lost process, and the script goes on without both
        if me is None:
            variables = ", ".join(plan.rank_variables) or "no variable"
            raise LaunchError(f"this process has no rank: its launcher sets none of {variables}; set {OWN_RANK}")
        if plan.umask is not None:
            os.umask(plan.umask)
        bind_to_node(plan, me)
        joining = Arrivals(plan_file).file(str(me))
        lost = LostGuards(plan_file).file(str(me))
        joining.unlink(missing_ok=True)  # of a process in whose place this one is
        started = stand_guard(str(me), lost, plan.timeout, linger=_LINGER, joining=joining, replaced=survives)
        close_input()
        preset_gpu(plan)
        if not plan.mpi:
            leave_launch()  # a script that uses MPI itself would wait for the servers, which do not start it
        os.environ |= {PLAN: str(plan_file), OWN_RANK: str(me) if survives else str(me.rank)}
        if me.role == "server":
            from hpcps.session.ending import serve_to_end
            from hpcps.session.join import join_launch
            from hpcps.session.outbox import checked_credit

            credit = checked_credit()
            session = join_launch(join_timeout=math.inf)
            session.limit(credit)
            started()
            return serve_to_end(session)
        if me.role != "worker":
            from hpcps.session.join import connect_to_end

            connect_to_end(plan, plan_file, started)
            return 0
        _become(plan, me)
    except HpcpsError as error:
        sys.stderr.write(f"hpcps: {socket.gethostname()}: {error}\n")
    return 2


def _become(plan: Plan, me: Rank) -> None:
    """Replace this program by the script.

    Raises:
        LaunchError: there is no such program.
    """
    script = plan.script
    assert script is not None, "the launch is that of a script"
    os.environ |= {**variables_of_worker(plan, me), "PYTHONUNBUFFERED": "1"}
    try:
        os.chdir(script.folder)
        program = shutil.which(script.command[0])
        if program is None:
            raise LaunchError(f"{script.command[0]}: no such program, or it is not executable")
        os.execv(program, script.command)
    except OSError as error:
        raise LaunchError(f"{error.filename or script.command[0]}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
