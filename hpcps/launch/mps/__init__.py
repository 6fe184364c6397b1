"""MPS, NVIDIA's Multi-Process Service: processes of one host share a GPU through it.

Without MPS their kernels take turns; with MPS they run at the same time. `membership` connects a rank to MPS before the
rank uses the GPU. `keeper` is the process that starts MPS for all ranks of a host and ends it after the last of them.
`probe` is a process that tests a GPU. The last two are programs that need only Python.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.launch.plan import Plan

if TYPE_CHECKING:
    from hpcps.launch.mps.membership import Membership

DRIVER = "/dev/nvidiactl"
"""The device file that exists on every machine with NVIDIA's driver."""


def share_gpu(plan: Plan, plan_file: Path) -> Membership | None:
    """Make this process use its GPU through MPS if it shares the GPU; return None, quickly, without a driver."""
    if not os.path.exists(DRIVER):
        return None
    from hpcps.launch.mps.membership import join

    return join(plan, plan_file, os.environ)
