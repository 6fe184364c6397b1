"""Execute several batches at a time, each in its own process on its own cores."""

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
from dataclasses import dataclass
from typing import IO

from hpcps.execution.sweep.batch import Batch, Ending
from hpcps.launch.limits import Cores

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
            [sys.executable, "-m", "hpcps.execution.sweep.slot"],
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
