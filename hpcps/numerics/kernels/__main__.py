"""`python -m hpcps.numerics.kernels`: compiles the kernels, so that no process of a run has to."""

import sys

from hpcps.numerics.kernels import installed

if not installed():
    sys.exit("hpcps: numba is not installed: pip install 'hpcps[kernels]'")

from hpcps.numerics.kernels.loading import load

if not load():
    print("hpcps: the kernels are already compiled")
