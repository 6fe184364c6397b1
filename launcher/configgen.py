#!/usr/bin/env python3
"""Write the MPI configfile of an experiment: `python launcher/configgen.py FILE --hostfile HOSTS -o conf`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hpcps.launch.configgen import main

if __name__ == "__main__":
    sys.exit(main())
