"""hpcps: parameter-server training experiments on MPI clusters."""

__version__ = "0.1.0"
