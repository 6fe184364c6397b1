"""`python rank.py PLAN DRIVER PATIENCE`: starts as a rank does, prints how it uses MPS, and stays until told to go."""

import json
import os
import sys
from pathlib import Path

from hpcps.launch import local_rank, mps
from hpcps.launch.guard import stand_guard
from hpcps.launch.plan import Plan

local_rank.DRIVER, mps.TIMEOUT = sys.argv[2], float(sys.argv[3])
path = Path(sys.argv[1])
plan = Plan.read(path)
before = dict(os.environ)
used, folder = local_rank.share_gpu(plan, path)
stand_guard("", path.with_name("lost") / str(os.getpid()), 600.0, folder)
changed = {name: value for name, value in os.environ.items() if before.get(name) != value}
local_rank.preset_gpu(plan)
print(json.dumps({"used": used, "changed": changed, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}), flush=True)
sys.stdin.read()
