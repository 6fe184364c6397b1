"""Loads MXNet with the settings that affect results, and selects the device."""

from __future__ import annotations

import os
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.lib import NumpyVersion

from hpcps.errors import SpecError
from hpcps.spec.schema import Train

ENVIRONMENT = "`make mxnet-env` makes an environment for it, .venv-mxnet: use .venv-mxnet/bin/hpcps"


def find_mxnet() -> None:
    """Check that MXNet can be imported, without importing it.

    Raises:
        SpecError: MXNet, GluonCV or a numpy that MXNet supports is not installed here.
    """
    missing = [name for name in ("mxnet", "gluoncv") if find_spec(name) is None]
    if missing:
        raise SpecError(f'model.backend = "mxnet", but {" and ".join(missing)} cannot be found here: {ENVIRONMENT}')
    if NumpyVersion(np.__version__) >= "1.24.0":  # MXNet 1.9 uses np.bool, which numpy 1.24 removed
        raise SpecError(f'model.backend = "mxnet" needs numpy 1.23, and this is numpy {np.__version__}: {ENVIRONMENT}')


def load_mxnet(threads: int) -> Any:
    """Import MXNet and return it.

    Args:
        threads: number of compute threads; MXNet reads it at import.

    Raises:
        SpecError: MXNet, GluonCV or a numpy that MXNet supports is not installed here.
    """
    find_mxnet()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["MXNET_CPU_WORKER_NTHREADS"] = "1"
    # If this variable names a server or scheduler, the import of MXNet runs that node and never returns.
    role = os.environ.pop("DMLC_ROLE", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy and pip have changed since the last release of MXNet
            import gluoncv.model_zoo  # noqa: F401
            import mxnet
    finally:
        if role is not None:
            os.environ["DMLC_ROLE"] = role
    return mxnet


def prepare_device(train: Train) -> Any:
    """Load MXNet; return its context for training.

    Raises:
        SpecError: `train.device = "cuda"`, but MXNet sees no GPU; or MXNet is not installed.
    """
    mxnet = load_mxnet(train.threads)
    gpus = mxnet.context.num_gpus() if train.device != "cpu" else 0
    if train.device == "cuda" and not gpus:
        raise SpecError(
            'train.device = "cuda", but MXNet sees no GPU here: use "auto" or "cpu", or a build with CUDA '
            "(the extra mxnet-cu110; GPUs up to Ampere)"
        )
    return mxnet.gpu(0) if gpus else mxnet.cpu()
