"""`python rank.py PLAN DRIVER PATIENCE`: comes under MPS as a rank does, says how, and stays until told to go."""

import json
import os
import sys
from pathlib import Path

from hpcps.launch import mps
from hpcps.launch.local_rank import preset_gpu
from hpcps.launch.mps import membership
from hpcps.launch.plan import Plan

mps.DRIVER, membership.TIMEOUT = sys.argv[2], float(sys.argv[3])
plan = Plan.read(Path(sys.argv[1]))
before = dict(os.environ)
joined = mps.share_gpu(plan, Path(sys.argv[1]))
changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
preset_gpu(plan)
print(json.dumps({"used": joined.used, "changed": changed, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}), flush=True)
sys.stdin.read()
