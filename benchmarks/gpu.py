"""Measure Figure 3's sixteen workers on one GPU: runs, rules, ways to exchange buffers, and torch DDP as a peer.

`python benchmarks/gpu.py [--quick] [--output FOLDER] [--rounds N] [--set KEY=VALUE]` writes gpu.md in less than eight
minutes. Every part is measured in a child process with a time limit, and the report is written after each of them: a
part that fails, crashes or hangs is named with the reason, and the others are measured all the same. Without CIFAR-10's
files (HPCPS_DATA) the runs use synthetic images of the same shape, which are not augmented. `--device cpu --output
FOLDER` tests it without a GPU. The exit status is 0 if all parts were measured, and 1 otherwise.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bars
import device_rules
import torch
from gpu_report import MODES, PARTS, bars_of, report
from gpu_runs import EXPERIMENT, ONE_POINT, POINTS, overrides, play, seconds_of_a_step
from machine import Others, description
from mps import shared_mps
from processes import ROOT, Command, MeasurementError, clean_up_on_sigterm, run_together

from hpcps.errors import HpcpsError

LIMITS = {"runs": 140.0, "rules": 80.0, **dict.fromkeys(MODES, 48.0), "ddp": 65.0, "steps": 40.0}
"""Seconds for each part; together less than eight minutes."""
ENDING = 8.0
"""Seconds before the end of a part at which what it has started is ended, so that it can tell what it has."""
ROUNDS_OF_A_MODE = 60
"""The most rounds of a run that only compares buffers: a launch takes longer than these."""


def measure(part: str, args: argparse.Namespace) -> object:
    """Measure a part in this process; return its result for JSON.

    Raises:
        MeasurementError: it cannot be measured here; the text says why.
    """
    if args.device == "cuda" and not torch.cuda.is_available():
        raise MeasurementError("torch sees no GPU here")
    if part == "ddp":
        return ddp(args)
    if part == "rules":
        # The kernels for 64 updates take the compiler longest: what was measured before is there if they take too long.
        if rates := device_rules.measure(quick=args.quick, keep=lambda found: keep(args.into, rows(found))):
            return rows(rates)
        raise MeasurementError(device_rules.LEFT_OUT)
    most = 20 if args.quick else ROUNDS_OF_A_MODE if part in MODES else args.rounds
    settings = overrides(args.device, min(args.rounds, most), args.set)
    if part == "steps":
        seconds = 2.0 if args.quick else 8.0
        return [seconds_of_a_step(settings, replays=replays, seconds=seconds) for replays in (False, True)]
    if part in MODES:
        if args.device == "cpu":
            raise MeasurementError("models are on the CPU")
        settings = [*settings, f"transport.device_buffers={part}"]
    points = ONE_POINT if args.quick or part in MODES else POINTS
    with tempfile.TemporaryDirectory() as folder:
        played, startup, problem = play(Path(folder), points, settings, seconds_left(args))
    return {"played": [asdict(one) for one in played], "startup": startup, "problem": problem}


def rows(rates: list[device_rules.Rate]) -> list[dict[str, Any]]:
    """Return rates for JSON."""
    return [asdict(rate) for rate in rates]


def keep(file: Path, result: object) -> None:
    """Write a result, so that the file is whole at any time."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(result))
    new.replace(file)


def seconds_left(args: argparse.Namespace) -> float:
    """Return the seconds for what this part starts."""
    return max(0.0, args.until - time.monotonic() - ENDING)


def ddp(args: argparse.Namespace) -> dict[str, object]:
    """Return the backend, the ranks, the batch of a rank and the images per second of all ranks, for each backend.

    Raises:
        MeasurementError: no backend works; the text has the reason of each.
    """
    ranks = 2 if args.quick else 16
    cases = [("gloo", ranks, 32), *([("nccl", 1, 32 * ranks)] if args.device == "cuda" else [])]
    found, problems = [], []
    for number, (backend, size, batch) in enumerate(cases, 1):
        # The ranks share the GPU as those of hpcps do. Sixteen processes start more slowly than one.
        limit = seconds_left(args) * (1.0 if number == len(cases) else 0.65)
        # A daemon whose processes were ended at a time limit may hang: others shall not find it.
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name,
            shared_mps(size if args.device == "cuda" else 1, Path(name)) as variables,
        ):
            words = [sys.executable, str(ROOT / "benchmarks/peers/ddp.py"), backend, args.device, str(batch)]
            words += ["2" if args.quick else "6", name]
            commands = [
                Command([*words, str(rank), str(size)], variables, f"{backend} rank {rank}") for rank in range(size)
            ]
            problem = run_together(commands, Path(name) / "logs", limit)
            if problem:
                problems.append(f"{backend}: {problem}")
                continue
            rates = [json.loads((Path(name) / f"rate{rank}").read_text()) for rank in range(size)]
            found.append((backend, size, batch, sum(rates)))
    if not found:
        raise MeasurementError("; ".join(problems))
    return {"rows": found, "problem": "; ".join(problems)}


def in_child(part: str, folder: Path) -> tuple[Any, str]:
    """Measure a part in a process of its own; return its result, or None, and why there is none or not all of it."""
    file = folder / f"{part}.json"
    words = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--part", part, "--into", str(file)]
    # All processes of a machine have the same monotonic clock.
    words += ["--until", str(time.monotonic() + LIMITS[part])]
    problem = run_together([Command(words, name=part)], folder / f"{part}.logs", LIMITS[part])
    problem = problem.partition("error: ")[2] or problem
    result = json.loads(file.read_text()) if file.exists() else None
    return result, problem or (result.get("problem", "") if isinstance(result, dict) else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one rule and a few rounds, to see that it works")
    parser.add_argument("--rounds", type=int, default=100, help="of each run, about (default: 100)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try it; no bars are written")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `hpcps run`")
    parser.add_argument("--only", nargs="*", choices=PARTS, help="measure only these parts")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results with a GPU, build/bench without one")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    there = args.device == "cuda" and torch.cuda.is_available()
    if args.output is None:
        if args.device == "cpu":
            parser.error("what a CPU does is no result of a GPU: say with --output where it is to go")
        args.output = ROOT / ("benchmarks/results" if there else "build/bench")
    clean_up_on_sigterm()
    if args.part:
        try:
            keep(args.into, measure(args.part, args))
        except (MeasurementError, HpcpsError) as error:
            print(f"error: {' '.join(str(error).split())}", flush=True)
            return 1
        return 0
    others, found, missing = Others(), {}, {}
    args.output.mkdir(parents=True, exist_ok=True)
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        for part in args.only or PARTS:
            result, why = in_child(part, Path(folder))
            found |= {} if result is None else {part: result}
            missing |= {part: why} if why else {}
            about = (
                f"{description()}. {EXPERIMENT.name} with `{' '.join([*args.set, f'--rounds {args.rounds}'])}`, all "
                f"processes on one machine, no attack. Other processes used {others.cores():.2f} cores meanwhile."
            )
            text = report(found, missing, about)
            (args.output / "gpu.md").write_text(text)
    if there:
        bars.write(args.output, "gpu", bars_of(found, missing))
    print(text)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
