"""The option for the folder of all results."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def add_results_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--results DIR`; the default is `$HPCPS_RESULTS`, which a site profile may set, or else `results`."""
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get("HPCPS_RESULTS") or "results"),
        help="the folder of all results; default: $HPCPS_RESULTS, else results",
    )
