"""Processes of one host that train on one GPU share it through MPS, NVIDIA's Multi-Process Service.

Without it their kernels take turns; with it they run at the same time. `membership` is what a rank does before anything
of it looks at the GPU, `keeper` the process that starts the service for all ranks of a host and ends it after the last
of them, `probe` a process that tries the GPU out. The last two are programs that need nothing but Python.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.launch.plan import Plan

if TYPE_CHECKING:
    from hpcps.launch.mps.membership import Membership

DRIVER = "/dev/nvidiactl"
"""It is there wherever NVIDIA's driver is."""


def share_gpu(plan: Plan, plan_file: Path) -> Membership | None:
    """Let this process use its GPU through MPS if it shares it; None, and hardly any time, where there is no driver."""
    if not os.path.exists(DRIVER):
        return None
    from hpcps.launch.mps.membership import join

    return join(plan, plan_file, os.environ)
