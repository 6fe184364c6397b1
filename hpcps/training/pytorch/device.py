"""Selects the device for training, and makes the settings of torch that affect results."""

from __future__ import annotations

import os

import torch

from hpcps.errors import SpecError
from hpcps.spec.schema import Train


def prepare_device(train: Train) -> torch.device:
    """Fix the number of threads and the determinism of torch, and return the device to train on.

    Raises:
        SpecError: `train.device = "cuda"`, but torch sees no GPU.
    """
    torch.set_num_threads(train.threads)
    # Otherwise deterministic torch fills new memory with NaN, which takes time and only helps to find bugs.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # cuBLAS reads this variable when it starts; without it torch refuses deterministic matrix products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # use_deterministic_algorithms(True) also loads torch's compiler, which takes 0.7 s and 70 MB.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    available = torch.cuda.is_available() if train.device != "cpu" else False
    if train.device == "cuda" and not available:
        raise SpecError(
            'train.device = "cuda", but torch sees no GPU here: use "auto" or "cpu", or a torch build with CUDA'
        )
    return torch.device("cuda", torch.cuda.current_device()) if available else torch.device("cpu")
