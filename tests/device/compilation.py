"""Compiles every kernel for an H100 without a GPU, and prints as JSON what the machine code uses.

`python compilation.py [N ...]`: for each N of the sorting rules. It runs without Triton's interpreter. Each line has
the name, the bytes of local memory and of stack of a thread, registers, and the widths of loads from global memory.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hpcps.numerics.device import changes, coordinates, engine, filtering, packing, scores, segments

DUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
POINTERS = {
    **dict.fromkeys(("table", "addresses", "offsets", "kept", "chosen", "shifts", "spans", "which"), "*i64"),
    **dict.fromkeys(("divisors", "sums", "totals", "thresholds", "threshold", "factors", "number"), "*fp64"),
    **dict.fromkeys(("dirty", "guard", "overflow", "accepted", "changed", "applied", "negated"), "*i32"),
    **dict.fromkeys(("base", "out", "v", "source", "vector", "payload"), "*fp32"),
}


def compiled(name, kernel, **constants):
    """Compile a kernel; arguments that are not given are tensors or whole numbers, and return what it uses."""
    fixed = {(i,): constants[arg] for i, arg in enumerate(kernel.arg_names) if arg in constants}
    pointers = POINTERS | ({"chosen": "*i32"} if kernel.fn.__module__ == changes.__name__ else {})
    signature = {arg: "constexpr" if arg in constants else pointers.get(arg, "i32") for arg in kernel.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, arg in enumerate(kernel.arg_names) if signature[arg][0] == "*"}
    source = ASTSource(kernel, signature=signature, constexprs=fixed, attrs=attributes)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        text = subprocess.run([DUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    usage = {key.lower(): int(re.search(rf"\b{key}:(\d+)", text)[1]) for key in ("REG", "STACK", "LOCAL")}
    loads = sorted(set(re.findall(r"ld\.global\S*?\.(v\d\.b\d+|b\d+)\b", made.asm["ptx"])))
    print(json.dumps({"name": name, **usage, "loads": loads}), flush=True)


def coordinate_kernels(numbers):
    for vector in (segments.VECTOR, 1):
        block = segments.segment_size(engine.AVERAGED)
        width = {"VECTOR": vector, "BLOCK": block}
        compiled(f"average {vector}", coordinates.average_segment, **width, STEP=engine.STEP, DTYPE=tl.float32)
        width = {"VECTOR": vector, "BLOCK": segments.segment_size(1)}
        compiled(f"screen {vector}", coordinates.screen_segment, **width, DTYPE=tl.float32)
    for n in numbers:
        block, trim = segments.segment_size(n), max(1, n // 5)
        ranks = {
            "median": ((n - 1) // 2, n // 2 + 1, False),
            "trimmed_mean": (min((n - 2) // 2, trim), n - min((n - 2) // 2, trim), False),
            "phocas": (trim, n - trim, True),
        }
        for name, (low, high, nearest) in ranks.items():
            pairs = engine.network(n, *((0, n) if nearest else (low, high)))
            keys = {"N": n, "NETWORK": pairs, "LOW": low, "HIGH": high, "NEAREST": nearest}
            width = {"VECTOR": segments.VECTOR, "BLOCK": block, "DTYPE": tl.float32}
            without = {} if name == "median" else {"base": None}
            compiled(f"{name} {n}", coordinates.ordered_segment, **keys, **width, **without)


def other_kernels():
    width = {"VECTOR": segments.VECTOR, "BLOCK": segments.segment_size(1), "DTYPE": tl.float32}
    compiled("multiply", scores.multiply_segment, **width, STEP=filtering.STEP)
    without = dict.fromkeys(("divisors", "chosen", "base", "out", "overflow"))
    compiled("multiply alone", scores.multiply_segment, **width, **without, STEP=filtering.STEP)
    compiled("bfloat16", scores.multiply_segment, **width | {"DTYPE": tl.bfloat16}, STEP=filtering.STEP)
    compiled("add", scores.add_segments, CHUNK=filtering.CHUNK)
    compiled("accept", scores.accept_similar, ROWS=16)
    compiled("clip", scores.clip_and_negate, BLOCKS=filtering.DECIDED)
    compiled("scale", scores.scale_segment, **width)
    for name, clears in (("copy", False), ("copy clearing", True)):
        compiled(name, packing.copy_segment, BLOCK=segments.LARGE, CLEARS=clears)
    del width["DTYPE"]
    compiled("change scaling", changes.change_segment, **width, SCALES=True)
    compiled("change filling", changes.change_segment, **width, SCALES=False)
    compiled("examine", changes.examine_segment, **width)
    compiled("place adding", changes.place_segment, **width, ADDS=True)
    compiled("place", changes.place_segment, **width, ADDS=False)


if __name__ == "__main__":
    coordinate_kernels([int(n) for n in sys.argv[1:]] or [4, 16])
    other_kernels()
