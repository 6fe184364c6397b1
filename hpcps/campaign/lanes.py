"""Several batches at a time, each in a process of its own on cores of its own."""

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

from hpcps.campaign.batch import Batch, Ending
from hpcps.cores import Cores

_TICK = 0.5


@dataclass
class _Lane:
    """A place for one batch at a time."""

    cores: Cores
    batch: Batch | None = None
    process: subprocess.Popen[bytes] | None = None
    ending: Ending | None = None


class Lanes:
    """Starts batches where there is a free lane, and says how they end."""

    def __init__(self, shares: Sequence[Cores], say: Callable[[str], None]) -> None:
        """Open a lane for each share of the cores."""
        self._lanes = [_Lane(cores) for cores in shares]
        self._say = say
        self._lines: queue.SimpleQueue[tuple[_Lane, bytes]] = queue.SimpleQueue()

    @property
    def free(self) -> bool:
        """Whether another batch can be started."""
        return any(lane.batch is None for lane in self._lanes)

    @property
    def busy(self) -> bool:
        """Whether any batch is being played."""
        return any(lane.batch is not None for lane in self._lanes)

    def start(self, batch: Batch) -> None:
        """Start a batch in a free lane."""
        lane = next(lane for lane in self._lanes if lane.batch is None)
        lane.batch, lane.ending = batch, None
        lane.process = subprocess.Popen(
            [sys.executable, "-m", "hpcps.campaign.lane"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A group of its own: Ctrl-C reaches us alone, and we pass it on.
            preexec_fn=os.setpgrp,
        )
        assert lane.process.stdin is not None
        assert lane.process.stdout is not None
        with suppress(BrokenPipeError), lane.process.stdin as pipe:  # its end says what became of it
            pickle.dump((batch, lane.cores), pipe)
        threading.Thread(target=self._read, args=(lane, lane.process.stdout), daemon=True).start()

    def wait(self) -> list[tuple[Batch, Ending]]:
        """Wait for a moment; return what has ended meanwhile."""
        ended = []
        with suppress(queue.Empty):
            lane, line = self._lines.get(timeout=_TICK)
            while True:
                if line:
                    self._take(lane, json.loads(line))
                else:
                    assert lane.batch is not None
                    ended.append((lane.batch, self._close(lane)))
                lane, line = self._lines.get_nowait()
        return ended

    def stop(self, number: signal.Signals) -> None:
        """Pass a signal on to everything that is being played."""
        for lane in self._lanes:
            if lane.process is not None and lane.process.poll() is None:
                lane.process.send_signal(number)

    def _read(self, lane: _Lane, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self._lines.put((lane, line))
        self._lines.put((lane, b""))

    def _take(self, lane: _Lane, answer: dict[str, object]) -> None:
        if "ending" in answer:
            lane.ending = Ending(**answer["ending"])  # type: ignore[arg-type]
        else:
            self._say(str(answer["say"]))

    def _close(self, lane: _Lane) -> Ending:
        assert lane.process is not None
        status = lane.process.wait()
        lane.batch = lane.process = None
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return lane.ending or Ending(1, f"the process that played on cores {', '.join(map(str, lane.cores))} {how}")
