"""The transport `mpi` of an experiment file."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, NoReturn

from pydantic import Field, field_validator

from hpcps.errors import LaunchError
from hpcps.transport.process_group import LaunchedProcess, ProcessGroup, ProcessTransport


class _Forked:
    """Ends a process that a rank has forked before mpi4py finalises MPI in it, as it does where it was imported first.

    The exit status is that of `sys.exit`, 1 after an exception, else 0: Python does not tell another one here.
    """

    def __init__(self, rank: int) -> None:
        """Take the id of the process of the rank."""
        self._rank, self._status = rank, 0

    def note_exit(self) -> None:
        """Note the status of `sys.exit` from now on."""
        leave = sys.exit

        def noted(status: Any = None, /) -> NoReturn:
            self._status = status if isinstance(status, int) else bool(status)
            leave(status)

        sys.exit = noted

    def end(self) -> None:
        """End this process, unless it is the rank."""
        if os.getpid() != self._rank:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._status or hasattr(sys, "last_value"))


class OverMpi(ProcessTransport):
    """One process per role, each a rank of MPI."""

    offers = frozenset({"processes", "hosts", "mpi", "allreduce", "shared_memory", "device_memory"})

    kind: Literal["mpi"] = "mpi"
    shared_memory: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: processes that can map each other's memory, such as those of one host, read updates and "
        "models in place; `off`: all updates and models are sent. The result is the same.",
    )
    device_buffers: Literal["auto", "direct", "staged"] = Field(
        "auto",
        description="Updates and models of training on GPUs with servers, over MPI. `direct`: MPI, which must be "
        "CUDA-aware, gets their addresses in device memory; `staged`: they are copied through the memory of the host; "
        "`auto`: `direct` if it works, which a trial finds out before the run. Rules run where the updates are.",
    )

    @field_validator("device_buffers", mode="before")
    @classmethod
    def _mapping_is_gone(cls, value: object) -> object:
        if value == "in_place":
            raise ValueError('"in_place" does not exist any more, because MPI maps device memory itself: use "direct"')
        return value

    @property
    def reads_in_place(self) -> bool:
        return self.shared_memory == "auto"

    @property
    def buffers(self) -> Literal["auto", "direct", "staged"]:
        return self.device_buffers

    @contextmanager
    def group(self, process: LaunchedProcess) -> Iterator[ProcessGroup]:
        MPI = load_mpi()
        from hpcps.transport.mpi.process_group import MpiProcessGroup

        # The launcher ends the other processes when one fails.
        ranks = {peer: rank for rank, peer in enumerate(process.world)}
        yield MpiProcessGroup(MPI.COMM_WORLD, ranks, process.watch)


def load_mpi() -> ModuleType:
    """Start MPI, if the script has not, and return mpi4py's module; the process group finalises it.

    Raises:
        LaunchError: there is no MPI library.
    """
    finalizes = "mpi4py.MPI" in sys.modules  # the script has imported it, so mpi4py finalises MPI itself
    try:
        import mpi4py

        # mpi4py would finalise MPI also at the end of a process that this one forks; the group does it.
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py looks for the library when MPI is imported
        reason = str(error).removeprefix("cannot load MPI library\n").partition("\n")[0]
        raise LaunchError(
            f"mpi4py finds no MPI library: {reason}; load your site's MPI module, name the library in "
            f"MPI4PY_LIBMPI, or install one: {sys.executable} -m pip install 'hpcps[mpich]'"
        ) from error

    if finalizes:
        forked = _Forked(os.getpid())
        os.register_at_fork(after_in_child=forked.note_exit)
        atexit.register(forked.end)
    return MPI
