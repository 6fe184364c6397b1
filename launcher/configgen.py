#!/usr/bin/env python3
"""Write the MPI configfile of an experiment: `python launcher/configgen.py FILE --hostfile HOSTS -o conf`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    from hpcps.cli.configgen import main
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"configgen: {sys.executable} has no module {error.name}, which hpcps needs: use the Python of its environment "
        "(.venv/bin/python), or install it there: -m pip install -e .\n"
    )
    sys.exit(2)  # ExitStatus.REFUSED

if __name__ == "__main__":
    sys.exit(main())
