"""The folder of all results, and the option for it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def default_results() -> Path:
    """Return `$HPCPS_RESULTS`, which a site profile may set, or else `results`."""
    return Path(os.environ.get("HPCPS_RESULTS") or "results")


def add_results_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--results DIR`; see `default_results`."""
    parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        default=default_results(),
        help="the folder of all results; default: $HPCPS_RESULTS, else results",
    )
