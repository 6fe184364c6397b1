"""Encoding and decoding speed of compressors, in GB/s of float32 per core: `compressors.py [--values N] [KIND …]`.

The times are CPU times, and the best of interleaved repetitions, so that other processes disturb them little.
"""

import argparse
import os
import time

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import numpy as np
import torch

from hpcps.compression import Compressor
from hpcps.numerics import kernels
from hpcps.registry import active


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


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--values", type=int, default=1 << 22)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels.ready()
    values = np.random.default_rng(1).standard_normal(arguments.values, dtype=np.float32)
    x, registered = torch.from_numpy(values), active().of("compressors").usable()
    kinds = {name: registered[name] for name in registered if issubclass(registered[name], Compressor)}
    pairs = {name: ours(kinds[name](), values) for name in arguments.kinds or kinds}
    if "topk" in pairs:
        pairs["topk, k = 0.1"] = ours(kinds["topk"](k=0.1), values)
        pairs["topk, heap"] = ours(kinds["topk"](order="heap"), values)
    torchs = {"fp16": lambda: cast(x, torch.float16), "bf16": lambda: cast(x, torch.bfloat16)}
    torchs |= {"int8": lambda: int8(x), "onebit": lambda: sign(x), "topk": lambda: topk(x, 0.01)}
    pairs |= {f"torch {name}": make() for name, make in torchs.items() if name in pairs}
    best = {name: [np.inf, np.inf] for name in pairs}
    for _ in range(arguments.repetitions):
        for name, both in pairs.items():
            for way, call in enumerate(both):
                began = time.process_time()
                call()
                best[name][way] = min(best[name][way], time.process_time() - began)
    print("| Compressor | Encode, GB/s | Decode, GB/s |\n|---|---|---|")
    for name, (write, read) in best.items():
        print(f"| {name} | {values.nbytes / write / 1e9:.2f} | {values.nbytes / read / 1e9:.2f} |")


if __name__ == "__main__":
    main()
