"""The provenance of a published copy: when, from which code and with which commands it was made."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import hpcps
from hpcps.errors import InputError, RunError
from hpcps.inputs import read_json
from hpcps.records.files import write_whole
from hpcps.records.provenance import packages, source_state

FILE = "publication.json"

_FOLDERS = re.compile(r"(?<![\w.])/(?:[^/\s\"',]+/)+")
"""The folders of an absolute path."""

_PACKAGES = ("numpy", "pandas", "pyarrow", "matplotlib")


def write_publication(folder: Path, source: Path, command: str, runs: Mapping[str, int]) -> None:
    """Write `publication.json` to the folder of a published copy.

    Args:
        folder: the published copy.
        source: the results folder from which it was made.
        command: the command that made it.
        runs: the number of runs in each state, such as `{"done": 16}`.

    Raises:
        RunError: it cannot be written.
    """
    code, versions = source_state(Path(hpcps.__file__).parent), packages()
    facts = {
        "published": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "runs": dict(runs),
        "launched_by": launch_commands(source),
        "hpcps": hpcps.__version__,
        "git": {"commit": code.commit, "uncommitted": bool(code.uncommitted)},
        "python": sys.version,
        "packages": {name: versions[name] for name in _PACKAGES if name in versions},
    }
    try:
        write_whole(folder / FILE, json.dumps(facts, indent=1) + "\n")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}") from error


def launch_commands(results: Path) -> list[str]:
    """Return the `hpcps run` commands that repeat the launches of an experiment, without folders of this machine."""
    commands = []
    for path in sorted((results / "sweeps").glob("*.json")):
        with suppress(InputError):
            match read_json(path):
                case {"file": str(file), "overrides": [*overrides]}:
                    words = ["hpcps", "run", f"{Path(file).parent.name}/{Path(file).name}"]
                    words += [f"--set={_FOLDERS.sub('…/', str(override))}" for override in overrides]
                    commands.append(shlex.join(words))
    return commands
