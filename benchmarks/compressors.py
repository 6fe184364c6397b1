"""Measure how fast compressors encode and decode, and how long a round takes with them between hosts.

    .venv/bin/python benchmarks/compressors.py [--quick] [--only rates] [--output benchmarks/results]

Rates are in GB/s of float32 per core. They come from CPU times, the best of interleaved repetitions, so that other
processes disturb them little. Without `--output` the report is only printed.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import numpy as np
import torch
from bars import Bar, write
from growth import GIGABITS, launch
from hosts import Network
from launches import Setting
from machine import Others, description
from processes import MeasurementError, NotHereError, clean_up_on_sigterm

from hpcps.compression import Compressor
from hpcps.numerics import kernels
from hpcps.registry import active

WANTED = {"fp16": 1.25, "int8": 1.25, "sign": 1.25, "onebit": 1.25, "topk": 0.4}
"""The lowest rates, each way."""
COMPRESSED = (
    ("none", "", False), ("fp16", "both", False), ("int8", "update", False), ("int8", "both", False),
    ("int8", "both", True),
)  # fmt: skip
"""Compressors between hosts, what they encode, and whether the model is one partition, so that nothing overlaps."""


def topk(x, share):
    """Return how torch sends and decodes the largest values."""
    k = int(share * len(x))

    def encode():
        indices = torch.topk(x.abs(), k, sorted=False).indices
        return indices.to(torch.int32), x[indices]

    indices, values = encode()
    return encode, lambda: torch.zeros(len(x)).index_put_((indices.long(),), values)


def int8(x):
    """Return how torch sends and decodes 8-bit integers."""

    def encode():
        scale = x.abs().max() / 127
        return scale, torch.round(x / scale).to(torch.int8)

    scale, codes = encode()
    return encode, lambda: codes.float() * scale


def sign(x):
    """Return how torch sends and decodes signs, 8 in a byte."""
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8)

    def encode():
        return x.abs().mean(), ((x < 0).view(-1, 8) * weights).sum(1, dtype=torch.uint8)

    scale, codes = encode()
    return encode, lambda: torch.where((codes[:, None] & weights).view(-1) > 0, -scale, scale)


def cast(x, dtype):
    """Return how torch sends and decodes another type of numbers."""
    narrow = x.to(dtype)
    return lambda: x.to(dtype), lambda: narrow.float()


def ours(compressor, values):
    """Return how a compressor encodes and decodes values."""
    code, out, kept = np.empty(compressor.most_bytes(len(values)), np.uint8), np.empty_like(values), {}
    encoded = compressor.encode(values)
    return lambda: compressor.write(values, code, kept), lambda: compressor.read(encoded, out)


def rates(size, repetitions):
    """Return the rates of each compressor, encoding and decoding, by name; plain torch's begin with `torch`."""
    torch.set_num_threads(1)
    kernels.ready()
    values = np.random.default_rng(1).standard_normal(size, dtype=np.float32)
    x, registered = torch.from_numpy(values), active().of("compressors").usable()
    kinds = {name: registered[name] for name in registered if issubclass(registered[name], Compressor)}
    pairs = {name: ours(kinds[name](), values) for name in kinds}
    pairs["topk, k = 0.1"] = ours(kinds["topk"](k=0.1), values)
    pairs["topk, heap"] = ours(kinds["topk"](order="heap"), values)
    torchs = {"fp16": lambda: cast(x, torch.float16), "bf16": lambda: cast(x, torch.bfloat16)}
    torchs |= {"int8": lambda: int8(x), "onebit": lambda: sign(x), "topk": lambda: topk(x, 0.01)}
    pairs |= {f"torch {name}": make() for name, make in torchs.items() if name in pairs}
    best = {name: [np.inf, np.inf] for name in pairs}
    for _ in range(repetitions):
        for name, both in pairs.items():
            for way, call in enumerate(both):
                began = time.process_time()
                call()
                best[name][way] = min(best[name][way], time.process_time() - began)
    return {name: [values.nbytes / seconds / 1e9 for seconds in both] for name, both in best.items()}


def between_hosts(megabytes, repeats):
    """Return rows for rounds with links of 1 Gbit/s: 4 workers and a server; the repetitions are interleaved."""
    rows = [
        {"compressor": kind, "direction": way or "–", "whole": whole, "times": []} for kind, way, whole in COMPRESSED
    ]
    with Network(5, GIGABITS) as network:
        for row, (kind, direction, whole) in list(zip(rows, COMPRESSED, strict=True)) * repeats:
            keys = f"{{kind='{kind}', direction='{direction}'}}" if direction else f"'{kind}'"
            more = (f"communication.compression={keys}", *(["transport.partition=1_073_741_824"] if whole else []))
            (found,) = launch(Setting(4, 1, more=more), [megabytes], 1, packs=True, network=network)
            row |= {"megabytes": megabytes, "problem": found.get("problem", "") or row.get("problem", "")}
            row["times"] += [found["seconds"]] if "seconds" in found else []
    return rows


def table_of_rates(found):
    """Return the lines of the report on rates."""
    lines = ["| Compressor | Encode, GB/s | Decode, GB/s | torch, encode | torch, decode |", "|---|---|---|---|---|"]
    for name, both in found.items():
        if not name.startswith("torch "):
            others = [f"{rate:.2f}" for rate in found.get(f"torch {name}", ())] or ["–", "–"]
            lines.append(f"| `{name}` | {' | '.join([*(f'{rate:.2f}' for rate in both), *others])} |")
    return lines


def table_of_rounds(rows):
    """Return the lines of the report on rounds between hosts."""
    lines = ["| Compressor | Encoded | Partitions | M, MB | Round, ms | Without / with |", "|---|---|---|---|---|---|"]
    for row in rows:
        partitions = "one" if row["whole"] else "several"
        head = f"| `{row['compressor']}` | {row['direction']} | {partitions} | {row['megabytes']} |"
        if row["times"]:
            shown = [f"{1e3 * seconds:.0f}" for seconds in sorted(row["times"])]
            lines.append(f"{head} {', '.join(shown)} | {gain(rows, row):.2f} |")
        else:
            lines.append(f"{head} – | {row['problem']} |")
    return lines


def gain(rows, row):
    """Return the median time of a round without a compressor in multiples of that of a row."""
    return (
        statistics.median(rows[0]["times"]) / statistics.median(row["times"])
        if rows[0]["times"] and row["times"]
        else 0.0
    )


def targets(found, rows):
    """Return the bars."""
    reached = []
    for name, lowest in WANTED.items():
        reached += (
            [Bar.at_least(f"`{name}`: GB/s, encode and decode", min(found[name]), lowest)] if name in found else []
        )
    for name in ("fp16", "bf16", "int8", "onebit", "topk"):
        if f"torch {name}" in found:
            slower = min(own / other for own, other in zip(found[name], found[f"torch {name}"], strict=True))
            reached.append(Bar.at_least(f"`{name}`: rate over torch's, encode and decode", slower, 1.0))
    for name in ("int8", "onebit", "topk"):  # torch needs more than three passes
        if f"torch {name}" in found:
            faster = found[name][0] / found[f"torch {name}"][0]
            reached.append(Bar.at_least(f"`{name}`: rate over torch's, encode", faster, 3.0))
    for row in rows:
        if (row["compressor"], row["direction"], row["whole"]) == ("int8", "both", False) and row["times"]:
            what = f"4 workers, 1 Gbit/s, {row['megabytes']} MB, int8 both ways: time without / with"
            reached.append(Bar.at_least(what, gain(rows, row), 3.0))
    return reached


def main():
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short version")
    parser.add_argument("--only", choices=["rates", "hosts"], help="this part")
    parser.add_argument("--output", type=Path, help="the folder for compressors.md")
    args = parser.parse_args()
    clean_up_on_sigterm()
    others, rows, failed = Others(), [], []
    size, repetitions, megabytes, repeats = (1 << 18, 1, 8, 1) if args.quick else (1 << 22, 9, 64, 3)
    found = {} if args.only == "hosts" else rates(size, repetitions)
    problem = ""
    if args.only != "rates":
        try:
            rows = between_hosts(megabytes, repeats)
            failed = [row["problem"] for row in rows if row.get("problem")]
        except (NotHereError, MeasurementError) as error:
            problem = f"Nothing was measured: {error}."
            failed = [] if isinstance(error, NotHereError) else [str(error)]
    lines = [
        "# Compressors", "",
        f"{description()}. Other processes used {others.cores():.2f} cores meanwhile.", "",
        "## Rates", "",
        f"{size:,} normal float32 values, one thread; CPU time, the best of {repetitions} interleaved repetitions.", "",
        *table_of_rates(found), "",
        "## Between hosts", "",
        "4 workers and a server, each on a host of its own (network namespaces on this machine), links of 1 Gbit/s "
        "each way. Time runs from the moment at which the workers begin to encode until the last of them has decoded "
        "the new model; without a compressor, a copy of the update takes the place of the encoding. With one partition "
        "nothing overlaps: a worker encodes its whole update before it sends it, and the server decodes, combines and "
        "encodes when all updates have come. The repetitions are interleaved, and the medians of each are compared.",
        "", problem, *table_of_rounds(rows), "",
    ]  # fmt: skip
    print("\n".join(lines))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "compressors.md").write_text("\n".join(lines), encoding="utf-8")
        write(args.output, "compressors", targets(found, rows))
    for line in failed:
        print("failed:", line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
