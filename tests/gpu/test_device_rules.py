"""The Triton kernels on a GPU: the tests of tests/device, which are run in Triton's interpreter elsewhere."""

import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("there is no GPU here", allow_module_level=True)
pytest.importorskip("triton", reason="the rules' kernels on a GPU need Triton, which torch's CUDA builds install")

sys.path.append(str(Path(__file__).parents[1] / "device"))

from test_changes_on_device import *  # noqa: F403
from test_device_combining import *  # noqa: F403
from test_rules_on_device import *  # noqa: F403
