"""Which backend this environment has: torch, or in .venv-mxnet (see `make unit-mxnet`) MXNet."""

from importlib.util import find_spec

BACKEND = "torch" if find_spec("torch") else "mxnet"
