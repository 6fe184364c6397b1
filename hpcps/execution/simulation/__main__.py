"""`python -m hpcps.execution.simulation RUN`: print the `[simulation]` table that is fitted to a run's records."""

import sys

from hpcps.errors import HpcpsError
from hpcps.execution.simulation.calibration import fit
from hpcps.execution.simulation.replay import speed_of
from hpcps.spec.keys import plain


def main() -> int:
    """Print the table; return the exit status."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        found, speed = fit(sys.argv[1]), speed_of(sys.argv[1])
    except HpcpsError as error:
        print(f"hpcps: {error}", file=sys.stderr)
        return 1
    machine: dict[str, object] = {"cores": found.cores} if found.cores else {}
    machine["speed"] = round(speed, 3)
    print("[simulation]")
    for key, value in ({"kind": "modelled"} | machine | found.costs.model_dump(mode="json")).items():
        print(f"{key} = {plain(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
