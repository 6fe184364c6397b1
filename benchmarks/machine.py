"""What a report says of the machine that it was measured on."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path

from hpcps.records.provenance import gpus, machine


def description() -> str:
    """Return the machine in a line."""
    facts = machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = ", ".join(gpus()) or "no GPU"
    return (
        f"{date.today().isoformat()}, {facts['cpu']}, {facts['usable_cores']} cores, {memory:.0f} GiB, {gpu}, "
        f"Linux {platform.release()}"
    )


def busy_cores(before: tuple[float, float]) -> float:
    """Return how many cores all processes of this machine have used since `now()` returned this."""
    used, moment = now()
    return (used - before[0]) / max(moment - before[1], 1e-9)


def now() -> tuple[float, float]:
    """Return the CPU seconds that this machine has used since it was started, and the time."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"), os.times().elapsed
