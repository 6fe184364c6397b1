"""Compare eight workers of hpcps with two plain PyTorch loops, one per core, in turns.

`python benchmarks/training.py [--quick] [--output FOLDER] [TURNS] [SECONDS]` writes training.md. It measures the total
images per second: of hpcps over mpirun from the end of the first round to the end of the last, with exchange and
evaluations; and of both loops together.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import bars
from barrier import Barrier
from machine import Others, description
from processes import ROOT, Command, MeasurementError, clean_up_on_sigterm, run_together

WORKERS, BATCH, LOCAL_STEPS, LOOPS = 8, 32, 8, 2
EPOCH = 3
"""Rounds."""
FORMATS = ("contiguous_format", "channels_last")
EXPERIMENT = """
name = "speed"
[topology]
servers = 1
validators = 0
workers = {workers}
[model]
name = "cifar_resnet20_v1"
[data]
name = "synthetic"
limit = {samples}
test_limit = 100
[train]
epochs = {epochs}
batch_size = {batch}
local_steps = {local_steps}
optimizer = {{ name = "nag", lr = 0.05, momentum = 0.9, weight_decay = 1e-4 }}
[validation]
rule = {{ kind = "average" }}
"""


def of_hpcps(folder, seconds):
    """Run hpcps for about `seconds`; return images per second and per CPU second, with the server's CPU time."""
    rounds = max(3, round(seconds * 1000 / (WORKERS * BATCH * LOCAL_STEPS)))
    folder.mkdir()
    # There is one shard more than workers: the validators' shard, which is not used here.
    samples = (WORKERS + 1) * BATCH * LOCAL_STEPS * EPOCH
    text = EXPERIMENT.format(
        workers=WORKERS, samples=samples, batch=BATCH, local_steps=LOCAL_STEPS, epochs=-(-rounds // EPOCH)
    )
    (folder / "speed.toml").write_text(text)
    words = [sys.executable, "-m", "hpcps", "run", str(folder / "speed.toml"), "--results", str(folder)]
    # On a very slow core the run may take ten times as long as requested.
    if problem := run_together([Command(words, name="hpcps run")], folder / "logs", 120 + 10 * seconds):
        raise MeasurementError(problem)
    (run,) = (folder / "speed/runs").iterdir()
    begins, ends, cpu, images = [], [], 0.0, 0
    for record in (run / "records").glob("*.jsonl"):
        lines = [line for line in map(json.loads, record.read_text().splitlines()) if line["event"] == "round"]
        cpu += sum(line["cpu"] + line.get("cpu_wait", 0.0) for line in lines[1:])
        if record.name.startswith("server"):
            continue
        begins.append(lines[0]["time"])
        ends.append(lines[-1]["time"])
        images += BATCH * LOCAL_STEPS * (len(lines) - 1)
    return images / (max(ends) - max(begins)), images / cpu


def of_loops(folder, seconds, form):
    """Run the plain loops in parallel; return their total images per second, and images per CPU second."""
    Barrier.prepare(folder)
    words = [sys.executable, str(ROOT / "benchmarks/training_loop.py"), str(seconds), form, str(BATCH), str(folder)]
    results = [folder / f"loop-{number}.json" for number in range(LOOPS)]
    one_thread = {"OMP_NUM_THREADS": "1"}
    loops = [Command([*words, str(LOOPS), str(file)], one_thread, f"{file.stem}, {form}") for file in results]
    if problem := run_together(loops, folder / "logs", 120 + 2 * seconds):
        raise MeasurementError(problem)
    speeds = [json.loads(result.read_text()) for result in results]
    return sum(speed for speed, _ in speeds), statistics.mean(each for _, each in speeds)


def measure(folder, turns, seconds):
    """Measure in turns; return the results of hpcps and of the loops of each format, and the failures."""
    ours, theirs = [], {form: [] for form in FORMATS}
    for turn in range(turns):
        try:
            of_ours = of_hpcps(folder / f"{turn}", seconds)
            forms = FORMATS if turn % 2 else FORMATS[::-1]
            of_theirs = {form: of_loops(folder / f"{turn}-{form}", seconds, form) for form in forms}
        except MeasurementError as error:
            return ours, theirs, f"turn {turn}: {error}"
        ours.append(of_ours)
        for form, speed in of_theirs.items():
            theirs[form].append(speed)
        print(f"turn {turn}: {of_ours}", of_theirs, flush=True)
    return ours, theirs, ""


def report(ours, theirs, others):
    """Return the table."""
    lines = [
        "# Training on the CPU: eight workers, and plain loops",
        "",
        f"{description()}. ResNet-20 on 3 x 32 x 32 images, batch {BATCH}, Nesterov momentum, one thread per process.",
        f"Medians of {len(ours)} turns, each of all three one after another; in brackets their range. Other processes",
        f"used {others:.2f} cores meanwhile.",
        "",
        "| | images/s in all | hpcps to that | per CPU second | hpcps to that |",
        "|---|---:|---:|---:|---:|",
        f"| hpcps: {WORKERS} workers, a server, H = {LOCAL_STEPS} | {_cell(ours, 0)} | | {_cell(ours, 1)} | |",
    ]
    for form, speeds in theirs.items():
        wall, cpu = _ratio(ours, speeds, 0), _ratio(ours, speeds, 1)
        name = form.replace("_format", "")
        row = f"{_cell(speeds, 0)} | {wall:.2f} | {_cell(speeds, 1)} | {cpu:.2f}"
        lines.append(f"| {LOOPS} PyTorch loops, {name} | {row} |")
    lines += [
        "",
        "CPU seconds are those of all its processes: data, augmentation, exchange, waiting and records included.",
        "The loops go over the same few batches and augment nothing.",
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("turns", nargs="?", type=int, default=3)
    parser.add_argument("seconds", nargs="?", type=float, default=15.0, help="of every measurement, about")
    parser.add_argument("--quick", action="store_true", help="one turn of three seconds, to see that it works")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results", help="default: benchmarks/results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    turns, seconds = (1, 3.0) if args.quick else (args.turns, args.seconds)
    others = Others()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, problem = measure(Path(folder), turns, seconds)
    if ours:
        text = report(ours, theirs, others.cores())
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "training.md").write_text(text)
        what = f"images/s of {WORKERS} workers to those of {LOOPS} PyTorch loops"
        least = min(_ratio(ours, speeds, 0) for speeds in theirs.values())
        bars.write(args.output, "training", [bars.Bar.at_least(what, least, 0.9)])
        print(text)
    if problem:
        print("failed:", problem, flush=True)
    return 1 if problem else 0


def _cell(speeds, which):
    numbers = [speed[which] for speed in speeds]
    return f"{statistics.median(numbers):.0f} ({min(numbers):.0f} to {max(numbers):.0f})"


def _ratio(ours, theirs, which):
    return statistics.median(a[which] / b[which] for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    sys.exit(main())
