"""`python -m hpcps.kernels`: have the kernels compiled, so that no process of a run has to."""

import sys

from hpcps.kernels import installed

if not installed():
    sys.exit("hpcps: there is no numba here: pip install 'hpcps[kernels]'")

from hpcps.kernels.loading import load

if not load():
    print("hpcps: the kernels are compiled already")
