"""When MPI is given the UCX of PyPI, and that MPI then loads it; only a GPU can show that it sends device memory."""

import sys
from pathlib import Path

import pytest

from hpcps.launch import gpu_mpi
from hpcps.launch.detect import find_launcher
from hpcps.launch.prepare import Site, prepare
from hpcps.spec.load import load_experiment

EXPERIMENT = """
name = "here"
topology = { servers = 1, validators = 0, workers = 2 }
model = { name = "mlp" }
data = { name = "digits" }
train = { epochs = 1, batch_size = 8, optimizer = { name = "sgd", lr = 0.1 } }
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package that looks like libucx; return its folder of libraries."""
    libraries = tmp_path / "site/libucx/lib"
    (libraries / "ucx").mkdir(parents=True)
    (libraries.parent / "__init__.py").touch()
    (libraries / "ucx/libuct_cuda.so.0").touch()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.delitem(sys.modules, "libucx", raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.delenv("UCX_TLS", raising=False)
    return libraries


def conf(folder, *overrides):
    """Return the configfile of an experiment under Hydra."""
    (folder / "here.toml").write_text(EXPERIMENT)
    points = load_experiment(folder / "here.toml", list(overrides)).points
    site = Site(find_launcher("hydra"), Path("/opt/mpi/bin/mpirun"))
    (launch,) = prepare(points, folder / "results", folder / "conf", site)
    return launch.files[folder / "conf"]


def test_the_package_is_used_where_models_are_on_a_gpu(tmp_path, package, monkeypatch):
    there = conf(tmp_path, "train.device=cuda")
    assert f"LD_LIBRARY_PATH={package} UCX_MODULE_DIR={package}/ucx UCX_TLS=sm,self,cuda_copy,cuda_ipc " in there
    assert "MPIR_CVAR_CH4_NETMOD=ucx MPIR_CVAR_NOLOCAL=1" in there
    assert "UCX" not in conf(tmp_path, "train.device=cpu")
    assert "UCX" not in conf(tmp_path, "train.device=cuda", "transport.kind=pslite")
    monkeypatch.setattr(gpu_mpi, "DRIVER", str(tmp_path / "nvidiactl"))
    assert "UCX" not in conf(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert "UCX" in conf(tmp_path)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a::/opt/b")
    monkeypatch.setenv("UCX_TLS", "tcp")
    there = conf(tmp_path)
    assert f"LD_LIBRARY_PATH={package}:/opt/a:/opt/b " in there
    assert "UCX_TLS" not in there


def test_a_ucx_without_cuda_is_not_used(tmp_path, package):
    (package / "ucx/libuct_cuda.so.0").unlink()
    assert gpu_mpi.find_ucx() is None
    assert "UCX" not in conf(tmp_path, "train.device=cuda")
