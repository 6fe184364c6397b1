"""Selects the device for training, and makes the settings of torch that affect results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from hpcps.errors import SpecError
from hpcps.spec.schema import Train


def generators_kept() -> AbstractContextManager[None]:
    """Return a context that puts back the state of torch's global random generators."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.random.fork_rng(range(torch.cuda.device_count()) if used else ())


@contextmanager
def settings_kept() -> Iterator[None]:
    """Put back the settings of torch that `prepare_device` makes, and its random state, for the caller's own code."""
    deterministic = torch.get_deterministic_debug_mode()
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        with generators_kept():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
        torch.backends.cudnn.benchmark = benchmark
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


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
