"""Compare the rules and attacks of hpcps with those of libraries on PyPI, and write `docs/rules.md`.

    python benchmarks/peers_compare.py

Each library is installed into a folder of its own, and runs in a process of its own. The results are in
`benchmarks/results/peers.json`, of which the page is made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from comparison.measured import all_libraries, measure
from processes import ROOT, MeasurementError

DATA = Path(__file__).parent / "results/peers.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--output", type=Path, default=DATA, help="the data file; default: benchmarks/results/peers.json"
    )
    args = parser.parse_args()
    started = time.monotonic()
    try:
        found = measure(all_libraries())
    except MeasurementError as error:
        print(error)
        return 1
    args.output.write_text(text_of(found), encoding="utf-8")
    if args.output == DATA:
        subprocess.run([sys.executable, str(ROOT / "docs/generate/rules.py")], check=True)
    verdicts = Counter(each["verdict"] for pairs in found["pairs"].values() for each in pairs.values())
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    print(f"{sum(verdicts.values())} pairs: {counted}, in {time.monotonic() - started:.0f} s; wrote {args.output}")
    return 0


def text_of(found: Mapping[str, Any]) -> str:
    """Return the data as JSON, with a line for each pair and each fingerprint."""
    parts = []
    for key, value in found.items():
        lines = _lines(value) if key in ("ours", "pairs", "traps", "libraries") else one(value)
        parts.append(f'"{key}": {lines}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(one, value)) + "\n]"
    nested = all(
        isinstance(each, dict) and each and all(isinstance(v, dict) for v in each.values()) for each in value.values()
    )
    lines = [f"{one(name)}: {_lines(each) if nested else one(each)}" for name, each in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def one(value: Any) -> str:
    """Return a value as JSON in one line; numbers that are not finite are strings."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
