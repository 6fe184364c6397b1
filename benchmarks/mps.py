"""One MPS daemon for all launches of a program."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def shared_mps(jobs: int, folder: Path | None = None) -> Iterator[dict[str, str]]:
    """Run one MPS daemon for all launches, which otherwise start one each and take turns; nothing for one at a time.

    Args:
        jobs: the number of launches.
        folder: an empty folder for a daemon that only processes with the variables find; by default all find it.

    Yields:
        The environment variables with which CUDA finds it.
    """
    control = shutil.which("nvidia-cuda-mps-control") if jobs > 1 else None
    variables = {}
    if control and folder:
        for name, place in {
            "CUDA_MPS_PIPE_DIRECTORY": folder / "pipe",
            "CUDA_MPS_LOG_DIRECTORY": folder / "log",
        }.items():
            place.mkdir()
            variables[name] = str(place)
    environment = {**os.environ, **variables}
    ours = (
        control is not None
        and not subprocess.run([control, "-d"], env=environment, stdout=subprocess.DEVNULL, check=False).returncode
    )
    try:
        yield variables if ours else {}
    finally:
        if control and ours:
            with suppress(subprocess.TimeoutExpired):
                quiet = subprocess.DEVNULL
                subprocess.run(
                    [control], env=environment, input="quit\n", text=True, stdout=quiet, timeout=10, check=False
                )
