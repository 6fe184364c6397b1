"""The float64 definitions of the rules, which judge the host's kernels too, and where the tests of this folder run."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "rules"))

from test_rules_against_definitions import REFERENCES, cases  # noqa: F401

from hpcps.numerics import device

torch = pytest.importorskip("torch")

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not device.installed() or not (GPU or device.interpreted()):
    pytest.skip("make test runs it in .venv-triton, in Triton's interpreter", allow_module_level=True)


def tensor(values, dtype=torch.float32):
    return torch.from_numpy(np.array(values)).to(DEVICE, dtype)


def array(values):
    return values.cpu().numpy()
