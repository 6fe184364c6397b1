"""LD_LIBRARY_PATH, by which a module's Python may find its shared library: an emptied environment keeps it."""

import os
from pathlib import Path

LIBRARIES = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if os.environ.get(name)}


def library_path(*folders: Path | str) -> str:
    """Return an LD_LIBRARY_PATH of some folders, and then that of this Python."""
    return os.pathsep.join([*map(str, folders), *LIBRARIES.values()])
