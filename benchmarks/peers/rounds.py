"""The rounds of every peer: fill the buffer, wait at the barrier, exchange, and check the result.

It needs only the standard library and any version of numpy, because it runs in every peer's environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))
from barrier import Barrier

LEAST = 2
"""The minimum number of measured rounds; one warm-up round precedes them."""


class Exchange(Protocol):
    """The exchange for one size: replaces every rank's `buffer`, a float32 numpy array, by the sum over the ranks."""

    buffer: Any

    def run(self) -> None:
        """Perform the exchange, and return once the sum is in the buffer."""


def take_rounds(folder: Path, rank: int, ranks: int, make: Callable[[int], Exchange]) -> None:
    """Run the rounds of every case in `folder/cases.json`, and write when each began and ended.

    A case is `{"elements": d, "rounds": most, "seconds": budget}`. This rank writes its times to
    `folder/times-<case>-<rank>.json`: a list of (time when all ranks had arrived, time when this rank had the sum),
    without the first round.

    Raises:
        SystemExit: a sum is wrong.
    """
    barrier = Barrier(folder, ranks)
    expected = ranks * (ranks + 1) // 2
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        exchange = make(case["elements"])
        times: list[tuple[float, float]] = []
        until = None
        for turn in range(case["rounds"] + 1):
            exchange.buffer.fill(rank + 1)
            began, over = barrier.wait(over=turn > LEAST and until is not None and time.monotonic() > until)
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
    barrier.wait()
