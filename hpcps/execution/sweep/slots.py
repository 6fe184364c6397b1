"""Execute several batches at a time, each in its own process on its share of the cores.

`python -m hpcps.execution.sweep.slots` is the program of such a process: signals, orphaned processes of a launch and
cores belong to a process. It reads a batch from its standard input and writes JSON lines: the messages to print and, at
the end, how the batch ended.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from hpcps.errors import HpcpsError, LaunchError
from hpcps.execution.sweep.batch import Batch, Ending, execute
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.guard import tie_to_parent
from hpcps.launch.limits import Cores, bind
from hpcps.registry import activate
from hpcps.registry.plugins import registry_of

if TYPE_CHECKING:
    from hpcps.spec.schema import Run


def divide(cores: Cores, jobs: int, runs: Sequence[Run]) -> tuple[Cores, ...]:
    """Give each of `jobs` launches its own cores; the numbers of cores differ by at most one.

    A launch may have more processes than cores, because waiting processes use no core. Launches must not compete for
    the same cores.

    Args:
        cores: the available cores.
        jobs: the number of launches at a time.
        runs: the runs; a process needs as many cores as it has threads.

    Raises:
        LaunchError: there are too few cores; the message gives the possible number of launches.
    """
    threads = max(run.train.threads for run in runs)
    most = max(1, len(cores) // threads)
    if jobs > most:
        each = f", and a process of these runs has {threads} threads" if threads > 1 else ""
        cores_here = f"{len(cores)} core{'s' * (len(cores) > 1)}"
        raise LaunchError(f"--jobs {jobs}: this command may use {cores_here}{each}: use at most --jobs {most}")
    size, rest = divmod(len(cores), jobs)
    starts = [job * size + min(job, rest) for job in range(jobs + 1)]
    return tuple(cores[start:stop] for start, stop in pairwise(starts))


def crowding(shares: Sequence[Cores], runs: Sequence[Run]) -> str:
    """Return a note that the runs of each launch share cores; empty if each process has its own core."""
    processes = max(size_of(run) for run in runs)
    fewest = min(map(len, shares))
    if len(shares) == 1 or processes <= fewest:
        return ""
    return f"{len(shares)} launches at a time: the {processes} processes of a run share {fewest} of the cores"


def size_of(run: Run) -> int:
    """Return the number of processes of a run that compute at the same time."""
    return 1 if run.transport.in_process else run.processes


_TICK = 0.5


@dataclass
class _Slot:
    """A set of cores that executes one batch at a time."""

    cores: Cores
    batch: Batch | None = None
    process: subprocess.Popen[bytes] | None = None
    ending: Ending | None = None


class Slots:
    """Starts batches in free slots and returns how they ended."""

    def __init__(self, shares: Sequence[Cores], say: Callable[[str], None]) -> None:
        """Create a slot for each share of the cores."""
        self._slots = [_Slot(cores) for cores in shares]
        self._say = say
        self._lines: queue.SimpleQueue[tuple[_Slot, bytes]] = queue.SimpleQueue()

    @property
    def free(self) -> bool:
        """Whether another batch can be started."""
        return any(slot.batch is None for slot in self._slots)

    @property
    def busy(self) -> bool:
        """Whether any batch is running."""
        return any(slot.batch is not None for slot in self._slots)

    def start(self, batch: Batch) -> None:
        """Start a batch in a free slot."""
        slot = next(slot for slot in self._slots if slot.batch is None)
        slot.batch, slot.ending = batch, None
        slot.process = subprocess.Popen(
            [sys.executable, "-m", "hpcps.execution.sweep.slots"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In its own process group: Ctrl-C reaches only us, and we forward it.
            preexec_fn=os.setpgrp,
        )
        assert slot.process.stdin is not None
        assert slot.process.stdout is not None
        with suppress(BrokenPipeError), slot.process.stdin as pipe:  # `_close` reports how the process ended
            # The plugins come first: unpickling the points needs the classes of their components.
            pickle.dump([(p["file"], p["text"]) for point in batch.points for p in point.plugins], pipe)
            pickle.dump((batch, slot.cores), pipe)
        threading.Thread(target=self._read, args=(slot, slot.process.stdout), daemon=True).start()

    def wait(self) -> list[tuple[Batch, Ending]]:
        """Wait for a moment; return the batches that have ended."""
        ended = []
        with suppress(queue.Empty):
            slot, line = self._lines.get(timeout=_TICK)
            while True:
                if line:
                    self._take(slot, json.loads(line))
                else:
                    assert slot.batch is not None
                    ended.append((slot.batch, self._close(slot)))
                slot, line = self._lines.get_nowait()
        return ended

    def stop(self, number: signal.Signals) -> None:
        """Forward a signal to all running batches."""
        for slot in self._slots:
            if slot.process is not None and slot.process.poll() is None:
                slot.process.send_signal(number)

    def _read(self, slot: _Slot, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.put((slot, line))
        self._lines.put((slot, b""))

    def _take(self, slot: _Slot, answer: dict[str, object]) -> None:
        if "ending" in answer:
            slot.ending = Ending(**answer["ending"])  # type: ignore[arg-type]
        else:
            self._say(str(answer["say"]))

    def _close(self, slot: _Slot) -> Ending:
        assert slot.process is not None
        status = slot.process.wait()
        slot.batch = slot.process = None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return slot.ending or Ending(1, f"the process on cores {', '.join(map(str, slot.cores))} {how}")


def main() -> int:
    """Execute the batch that `Slots.start` sends; return 0, even if the batch fails."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    tie_to_parent(signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    # Redirect other output to stderr, so that stdout holds only the JSON lines.
    answers = os.dup(1)
    os.dup2(2, 1)

    def answer(**fields: object) -> None:
        with suppress(BrokenPipeError):  # the parent was killed: nobody reads the answers
            os.write(answers, f"{json.dumps(fields)}\n".encode())

    batch: Batch
    cores: Cores
    activate(registry_of(pickle.load(sys.stdin.buffer), Path()))
    batch, cores = pickle.load(sys.stdin.buffer)
    bind(cores)
    try:
        ending = execute(batch, lambda text: answer(say=text), lambda: None)
    except KeyboardInterrupt:
        ending = Ending(ExitStatus.INTERRUPTED, "stopped", over=True)
    except HpcpsError as error:
        ending = Ending(ExitStatus.REFUSED, str(error), over=True)
    answer(ending=asdict(ending))
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
