"""Compiles the kernels as launches do, for the very arguments of calls, for an H100 without a GPU; prints their names.

`python launching.py`: without Triton's interpreter. A launch makes constants of arguments that are 1 or None, and notes
which are multiples of 16, so a kernel that compiles for any number may not compile for one update or one block.
"""

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from hpcps.numerics.device import changes, filtering, packing, segments
from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.layout import Layout
from hpcps.rules import Average, Median, Phocas, Zeno, ZenoPlusPlus
from hpcps.rules.on_device import DeviceContext

RULES = (Average(), Median(), Phocas(f=1), Zeno(rho=0.0), Zeno(rho=-1.0))
LAYOUTS = [(40, 3), (8,), (3,)]
found = set()


class Driver:
    """As much of a driver as the compiler asks for."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


def compile_only(kernel, programs, *arguments, **constants):
    grid = programs if isinstance(programs, tuple) else (programs,)
    if 0 not in grid:
        kernel.warmup(*arguments, grid=grid, **constants, num_warps=4, enable_fp_fusion=False)
        found.add(kernel.fn.__name__)


def vector(layout):
    return torch.zeros(layout.size)


def call_everything(n, sizes):
    layout = Layout.of([(str(i), (size,)) for i, size in enumerate(sizes)])
    updates, mask = DeviceUpdates(layout, [vector(layout)] * n), np.ones(len(sizes), np.bool_)
    for rule in RULES:
        for base in (None, vector(layout)):
            if (kernel := rule.kernel_for(n)) is not None:
                kernel(updates, DeviceContext(vector(layout), base, vector(layout)))
    if n == 1:
        ZenoPlusPlus().device_kernel()(updates, DeviceContext(vector(layout), out=vector(layout)))
        packing.pack(layout, vector(layout), mask, vector(layout), clear=True)
        packing.unpack(layout, vector(layout), mask, vector(layout))
        changes.scale(layout, vector(layout), mask, 2.0)
        changes.spoil(layout, vector(layout), mask)
        changes.put(layout, vector(layout), mask, vector(layout))
        changes.add(layout, vector(layout), mask, vector(layout))


if __name__ == "__main__":
    driver.set_active(Driver())
    for module in (segments, packing, filtering):
        module.launch = compile_only
    for number in (1, 2, 3, 16):
        for blocks in LAYOUTS if number < 3 else LAYOUTS[:1]:
            call_everything(number, blocks)
    print(*sorted(found))
