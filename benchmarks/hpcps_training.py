"""Executes experiments by hpcps's library, in this process, as `peers/byzfl_training.py` trains with ByzFL.

    python hpcps_training.py

For each line of the input, a JSON object, the program executes a run and prints a line. Keys of the request:
`experiment`, the experiment as a dictionary; and `model`, the file for the final parameters. The answer has the keys of
that of `peers/byzfl_training.py`.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time

import numpy as np

import hpcps


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the processes that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        began, used = time.perf_counter(), cpu_seconds()
        accuracies: list[float] = []
        with tempfile.TemporaryDirectory(prefix="hpcps-byzfl-") as results:
            done = hpcps.run(
                request["experiment"],
                results=results,
                progress=False,
                callbacks=hpcps.Callbacks(on_evaluation=lambda report: accuracies.append(report.accuracy)),  # noqa: B023
            )
            np.save(request["model"], done.final_model(done.ids[0]))
        answer = {"accuracy": accuracies[-1], "seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used}
        answer["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
