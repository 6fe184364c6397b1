"""`python -m hpcps` is the `hpcps` command."""

import sys

from hpcps.cli.main import main

sys.exit(main())
