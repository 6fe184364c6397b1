"""Loads MXNet, with the settings that a result depends on, and chooses the device."""

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
    """Make sure that MXNet can be imported, without doing so.

    Raises:
        SpecError: it, GluonCV or a numpy that it works with is not installed here.
    """
    missing = [name for name in ("mxnet", "gluoncv") if find_spec(name) is None]
    if missing:
        raise SpecError(f'model.backend = "mxnet", but {" and ".join(missing)} cannot be found here: {ENVIRONMENT}')
    if NumpyVersion(np.__version__) >= "1.24.0":  # which has no longer, or another, np.bool: MXNet 1.9 uses it
        raise SpecError(f'model.backend = "mxnet" needs numpy 1.23, and this is numpy {np.__version__}: {ENVIRONMENT}')


def load_mxnet(threads: int) -> Any:
    """Import MXNet and return it.

    Args:
        threads: compute threads of this process; MXNet reads them when it is imported.

    Raises:
        SpecError: it, GluonCV or a numpy that it works with is not installed here.
    """
    find_mxnet()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["MXNET_CPU_WORKER_NTHREADS"] = "1"
    # Where it finds the role of a server or scheduler, MXNet becomes that node, and its import never returns.
    role = os.environ.pop("DMLC_ROLE", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what has changed in numpy and pip since MXNet's last release
            import gluoncv.model_zoo  # noqa: F401
            import mxnet
    finally:
        if role is not None:
            os.environ["DMLC_ROLE"] = role
    return mxnet


def prepare_device(train: Train) -> Any:
    """Load MXNet and return its context to train on.

    Raises:
        SpecError: `train.device = "cuda"` where there is none, or MXNet is not installed.
    """
    mxnet = load_mxnet(train.threads)
    gpus = mxnet.context.num_gpus() if train.device != "cpu" else 0
    if train.device == "cuda" and not gpus:
        raise SpecError(
            'train.device = "cuda", but MXNet sees no GPU here: use "auto" or "cpu", or a build with CUDA '
            "(the extra mxnet-cu110; GPUs up to Ampere)"
        )
    return mxnet.gpu(0) if gpus else mxnet.cpu()
