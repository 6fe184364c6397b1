"""The rounds that every peer takes: fill the buffer, meet, exchange, and look at the result.

Needs the standard library and numpy only, and any numpy, as it runs in every peer's environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))
from meeting import Meeting

LEAST = 2
"""Measured rounds, however slow; one more before them warms up."""


class Exchange(Protocol):
    """One size's exchange: every rank's `buffer`, a float32 numpy array, becomes the sum over the ranks."""

    buffer: Any

    def run(self) -> None:
        """Do it, and return once the sum is in the buffer."""


def take_rounds(folder: Path, rank: int, ranks: int, make: Callable[[int], Exchange]) -> None:
    """Take the rounds of every case in `folder/cases.json`, and write when each began and ended.

    A case is `{"elements": d, "rounds": most, "seconds": budget}`. What this rank saw goes to
    `folder/times-<case>-<rank>.json`: a list of (when all had come, when this rank had the sum), the first round's
    left out.

    Raises:
        SystemExit: a sum is wrong.
    """
    meeting = Meeting(folder, ranks)
    expected = ranks * (ranks + 1) // 2
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        exchange = make(case["elements"])
        times: list[tuple[float, float]] = []
        until = None
        for turn in range(case["rounds"] + 1):
            exchange.buffer.fill(rank + 1)
            began, over = meeting.meet(over=turn > LEAST and until is not None and time.monotonic() > until)
            if over:
                break
            exchange.run()
            times.append((began, time.monotonic()))
            until = until or times[0][1] + case["seconds"]
            sample = exchange.buffer if turn == 0 else exchange.buffer[:: max(1, exchange.buffer.size // 1000)]
            if not (sample == expected).all():
                raise SystemExit(f"rank {rank}: error: the sum of round {turn} is wrong: {sample}")
        (folder / f"times-{number}-{rank}.json").write_text(json.dumps(times[1:]))
        del exchange
    meeting.meet()
