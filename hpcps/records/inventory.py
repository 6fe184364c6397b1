"""The files of a finished run, and a check that none is missing or has changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpcps.errors import RunError
from hpcps.inputs import regular
from hpcps.records.files import LEFT, RECORDS, Tail

_LAST_LINES = 65536
_SPEC = "spec.json"
_OTHERS = ("provenance.json", "uncommitted.diff", "plugins/*.py")
_AGAIN = "the run's folder was deleted, moved or changed during the run; run it again"


@dataclass(frozen=True)
class Damage:
    """The files of a run that are missing or have changed; false if there are none.

    Attributes:
        missing: what is not there, or cannot be read.
        changed: the files with another size or content than at the end of the run.
        done: whether the run is marked as done.
    """

    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    done: bool = True

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed)

    def __str__(self) -> str:
        found = [f"it lacks {enumerated(self.missing)}"] if self.missing else []
        if self.changed:
            have = "has" if len(self.changed) == 1 else "have"
            found.append(f"{enumerated(self.changed)} {have} changed since the end of the run")
        return f"{'it is marked as done, but ' if self.done else ''}{', and '.join(found)}"


UNDAMAGED = Damage()
"""No file is missing or has changed."""


def inventory(run: Path, processes: Iterable[str]) -> dict[str, dict[str, int] | dict[str, str]]:
    """Return what `DONE` keeps of each file of a finished run, by its path in the run's folder.

    Args:
        run: the folder.
        processes: the processes of the run, such as `worker-3`; the last line of each record lists the saved files.

    Returns:
        `files`, the size in bytes of each, and `sha256`.

    Raises:
        RunError: a file is missing, or the last line of a record is not that of a finished process.
    """
    files = [_SPEC]
    for process in processes:
        record = f"records/{process}.jsonl"
        lines = Tail(run / record, _LAST_LINES).read()
        last = lines[-1] if lines else {}
        if lines and (last.get("event"), last.get("reason")) != ("end", "finished"):
            raise RunError(f"{run / record} does not state that {process} has finished: {_AGAIN}")
        files += [record, *(f"{name}.npy" for name in last.get("checksums") or ())]
    for file in sorted(run.glob(RECORDS)):
        lines = Tail(file, _LAST_LINES).read()
        files += [f"records/{file.name}"] if lines and lines[-1].get("event") == LEFT else []
    files += sorted(str(path.relative_to(run)) for pattern in _OTHERS for path in run.glob(pattern))
    sizes = {name: _size(run / name) for name in files}
    if lost := [name for name, size in sizes.items() if not size]:
        raise RunError(f"{enumerated(lost)} missing in {run}: {_AGAIN}")
    return {
        "files": {name: size for name, size in sizes.items() if size},
        "sha256": {name: _sha256(run / name) for name in files},
    }


def damage(run: Path, done: object, *, contents: bool) -> Damage:
    """Return which files of a finished run are missing or have changed.

    Args:
        run: the folder.
        done: the content of `DONE`. Earlier versions kept no checksums, or not even sizes: then these are not compared.
        contents: whether to compare checksums, for which all files are read; otherwise only sizes.
    """
    known = done if isinstance(done, Mapping) else {"files": None}
    sizes, checksums = known.get("files", {}), known.get("sha256", {})
    if not isinstance(sizes, Mapping) or not isinstance(checksums, Mapping):
        return Damage(("a readable DONE",))
    there = {name: _size(run / name) for name in sizes}
    missing = [name for name, size in there.items() if not size]
    changed = [name for name, size in sizes.items() if there[name] and size not in (None, there[name])]
    if not sizes and not any(run.glob(RECORDS)):
        missing.append("records")
    for name, checksum in checksums.items() if contents else ():
        if there.get(name) and name not in changed and _sha256(run / name) != checksum:
            changed.append(name)
    return Damage(tuple(missing), tuple(changed))


def enumerated(names: Sequence[str], most: int = 3) -> str:
    """Format a list of names, such as `a, b, c and 4 more`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _size(file: Path) -> int | None:
    with suppress(OSError, ValueError):  # a path with a null byte
        return file.stat().st_size
    return None


def _sha256(file: Path) -> str:
    """Return the checksum of a file; read it only once per process, as long as it stays as it is."""
    try:
        now = file.stat()
        return _digest(file, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    except OSError:
        return ""


@lru_cache(maxsize=1 << 16)
def _digest(file: Path, *state: int) -> str:
    with regular(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
