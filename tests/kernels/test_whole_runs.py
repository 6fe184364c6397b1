"""A whole run ends with the same model, to the last bit, whether kernels combine its updates or numpy does."""

from unittest.mock import patch

import numpy as np
import pytest
from executed import run_here

from hpcps.numerics import kernels
from hpcps.spec.schema import Run

if not kernels.installed():
    pytest.skip("numba is missing: it is optional", allow_module_level=True)

SYNC = {"train": {"epochs": 2, "batch_size": 8, "local_steps": 2, "optimizer": {"lr": 0.05}}}
ASYNC = {"train": {"mode": "async", "epochs": 1, "batch_size": 8, "local_steps": 2, "optimizer": {"lr": 0.05}}}


@pytest.mark.parametrize(
    ("rule", "validators", "train"),
    [("average", 0, SYNC), ("phocas", 1, SYNC), ("median", 2, SYNC), ("zeno", 1, SYNC), ("zeno++", 1, ASYNC)],
)
def test_kernels_leave_no_trace(tmp_path, rule, validators, train):
    run = Run.model_validate(
        {
            "name": "kernels",
            "topology": {"servers": 2, "validators": validators, "workers": 6},
            "model": {"name": "mlp"},
            "data": {"name": "digits", "limit": 160, "test_limit": 100},
            "communication": {"participation": 0.8, "skip_rate": 0.3},
            "validation": {"rule": {"kind": rule}},
            "attack": {"kind": "random", "rate": 0.3},
            **train,
        }
    )
    models = []
    for smallest in (0, 1 << 62):
        with patch.object(kernels, "SMALLEST", smallest):
            models.append(run_here(run, tmp_path / str(smallest)).final_model())
    assert np.isfinite(models[0]).all()
    assert np.array_equal(*models)
